"""Advantages of the steps of all hosts, and their metrics."""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.mix import writes_summaries
from gigpo_jax.devices.exchange import all_hosts, all_rows
from gigpo_jax.learner.objective import config_algorithm
from gigpo_jax.learner.step_columns import neighbour_buckets, resize_columns, step_columns
from gigpo_jax.rl import advantages as rl_advantages
from gigpo_jax.rl.types import StepColumns
from gigpo_jax.trajectory import Step, StepCredit


def step_credit(
    config: ConfigDict,
    advantages: Callable[[StepColumns], rl_advantages.Advantages],
    steps: Sequence[Step],
    computed: Mapping[str, np.ndarray],
    *,
    compiles_ahead: bool = False,
) -> tuple[dict[str, float], StepCredit]:
    """Computes advantages over the steps of all hosts, so that statistics of the batch are exact.

    Args:
      config: resolved config.
      advantages: advantage function as from `make_objective`.
      steps: steps of this host, as from `trajectory.finished_steps`.
      computed: columns of signals; those that the algorithm does not need are ignored.
      compiles_ahead: whether to compile the programs of iterations with somewhat fewer or more
        steps too.

    Returns:
      Metrics of all hosts, with `env.mix` also of each environment; the credit of this host's
      steps.
    """
    needs = config_algorithm(config).columns
    if config.train.forks:
        needs = (*needs, "forked")
    if writes_summaries(config):
        needs = (*needs, "summary")
    columns = step_columns(
        steps,
        similarity=config.rl.similarity if config.rl.anchor_match == "similar" else None,
        join=all_rows,
        needs=needs,
        computed={name: column for name, column in computed.items() if name in needs},
    )
    # Every host computes the rows of all: columns are small, and the statistics need all rows.
    result = advantages(columns)
    # The number of steps changes as the policy learns. Programs for the next sizes compile now, in
    # the iteration that compiles everything; their results are not used.
    if compiles_ahead:
        most_steps = config.train.groups * config.train.group_size * config.env.max_steps
        # One text at most before each step.
        most_steps *= 1 + writes_summaries(config)
        for size in neighbour_buckets(len(columns.mask), most_steps):
            resized = resize_columns(columns, size)
            credit_metrics(advantages(resized), resized)
    credit = _local_credit(result, columns, len(steps))
    metrics = credit_metrics(result, columns)
    if config.env.mix:
        from gigpo_jax.learner.mixed_credit import credit_by_environment

        measure = functools.partial(credit_metrics, result)
        metrics |= credit_by_environment(config.env.mix, steps, columns, measure)
    if result.target is not None:
        from gigpo_jax.rl import gae

        for name, value in gae.value_metrics(columns, result.target).items():
            metrics[name] = float(value)
    return metrics, credit


def _local_credit(result: rl_advantages.Advantages, columns: StepColumns, steps: int) -> StepCredit:
    """The credit of this host's steps; `steps` is their number."""
    # Rows stand in the order of hosts: the rows of earlier hosts come before this one's.
    counts = all_hosts(np.array([steps], np.int32))[:, 0]
    first = int(counts[: jax.process_index()].sum())
    local_rows = slice(first, first + steps)
    # numpy: samples are packed on the host.
    local = jax.tree.map(lambda rows: np.asarray(rows)[local_rows], result)
    # Equal hashes in different task groups are different states.
    keys = np.column_stack([columns.group, columns.anchor])[local_rows]
    _, anchor_group = np.unique(keys, axis=0, return_inverse=True)
    return StepCredit(anchor_group=anchor_group.reshape(steps), **vars(local))


def credit_metrics(
    result: rl_advantages.Advantages, columns: StepColumns, suffix: str = ""
) -> dict[str, float]:
    """Statistics of the mask's rows; their names end with `suffix`."""
    statistics = rl_advantages.measure_credit(result, columns)
    return {f"credit/{name}{suffix}": float(value) for name, value in statistics.items()}
