"""Chooses the tasks of an iteration, with the sources that change them (docs/tasks.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import jax
from ml_collections import ConfigDict

from gigpo_jax.config.keys import meets_condition
from gigpo_jax.config.mix import member_shares
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.method_table import METHOD_SOURCES
from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.draws import draw_tasks
from gigpo_jax.rollout.rollout import RolloutJob

if TYPE_CHECKING:
    from gigpo_jax.rollout.task_sources import TaskSource

_T = TypeVar("_T")


def host_share(items: Sequence[_T]) -> tuple[int, Sequence[_T]]:
    """Index of this host's first item, and its items.

    Raises:
      InputError: the split is uneven.
    """
    hosts = jax.process_count()
    host = jax.process_index()
    if len(items) % hosts:
        raise InputError(
            f"must be a multiple of the {hosts} hosts", key="config.train.groups", value=len(items)
        )
    share = len(items) // hosts
    return host * share, items[host * share : (host + 1) * share]


# The sources in the order in which they learn, by what needs them
# (`config.keys.meets_condition`).
SOURCES: ReferenceTable["type[TaskSource]"] = ReferenceTable(
    {
        "train.curriculum=success": "gigpo_jax.rollout.curriculum:Curriculum",
        "train.forks": "gigpo_jax.rollout.fork_starts:Forks",
        "train.earlier_starts": "gigpo_jax.rollout.earlier_starts:EarlierStarts",
        "train.refill_groups": "gigpo_jax.rollout.group_ends:GroupEnds",
        "train.finish_fraction": "gigpo_jax.rollout.group_ends:GroupEnds",
    }
    | METHOD_SOURCES
)


def make_sources(
    config: ConfigDict, tasks: Sequence[Task], *, is_training: bool
) -> "dict[str, TaskSource]":
    """Makes the sources that a config asks for, by name."""
    needed = [SOURCES[condition] for condition in SOURCES if meets_condition(config, condition)]
    return {
        source.name: source(config, tasks)
        for source in dict.fromkeys(needed)
        if is_training or not source.is_for_training
    }


def choose_tasks(
    config: ConfigDict, tasks: Sequence[Task], sources: "Mapping[str, TaskSource]", iteration: int
) -> RolloutJob:
    """Chooses this host's share of the tasks of a training iteration.

    Args:
      config: Config of the run.
      tasks: Tasks of all environments.
      sources: Sources by name, in the order in which they learn: the first with weights has them,
        and each may change what the ones before it chose.
      iteration: Number of the iteration.

    Raises:
      InputError: As `host_share`.
    """
    train = config.train
    weights = None
    for source in sources.values():
        weights = source.weights() if weights is None else weights
    shares = member_shares(config)
    drawn = draw_tasks(tasks, iteration, train.groups, config.seed, weights, shares)
    job = RolloutJob(drawn, train.group_size, iteration, shares_texts=True)
    for source in sources.values():
        job = source.choose(job, weights)
    # Every host draws all tasks, from the same seed, and takes its share.
    first_group, local_tasks = host_share(job.tasks)
    return replace(job, tasks=local_tasks, first_group=first_group)
