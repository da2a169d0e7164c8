"""Freezes panels (eval sets) of any environment, and checks data against them."""

import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gigpo_jax.env_bridge.freeze import freeze_panel
from gigpo_jax.env_bridge.panels import Panel, check_panel, find_panel
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry


def freeze_tasks(
    environment: str,
    name: str,
    split: str,
    *,
    options: Mapping[str, Any],
    generate: Mapping[str, Any] | None = None,
    each: int | None = None,
) -> Panel:
    """Freezes the tasks of a split.

    Args:
      environment: Name of the environment, as in `registry.spec`.
      name: Name of the panel.
      split: Split of the tasks.
      options: Options of the environment's builder.
      generate: Values of `env.generate` in a config: the data is generated with them, once. None:
        the options name the data.
      each: Number of tasks of every type, in turn, so that the first tasks are a fair sample. None
        for all tasks.
    """
    options = dict(options)
    # The panel keeps these values, so that others can make the same data from them.
    if generate:
        cache = cache_folder(environment)
        options["data"] = registry.generate_data(environment, cache, **generate)
    env = registry.make(environment, **options)
    try:
        ids = None if each is None else select_in_turn(env.tasks(split), each)
        return freeze_panel(name, environment, env, split, ids=ids, made_from=generate)
    finally:
        env.close()


def select_in_turn(tasks: Sequence[Task], each: int) -> list[str]:
    """Returns the ids of `each` tasks of every type, spread evenly over the type, in turn."""
    ids_by_type: dict[str, list[str]] = {}
    for task in tasks:
        ids_by_type.setdefault(task.type, []).append(task.id)
    samples = []
    for ids in ids_by_type.values():
        count = min(each, len(ids))
        # Evenly spread: neighbours in a list are often alike.
        samples.append([ids[index * len(ids) // count] for index in range(count)])
    selection = []
    # In turn, so that any first part of the panel has all types.
    for turn in zip_longest(*samples):
        selection += [task_id for task_id in turn if task_id is not None]
    return selection


def check_tasks(environment: str, name: str, *, options: Mapping[str, Any]) -> tuple[Task, ...]:
    """Returns a panel's tasks, after a check that the data is what the panel was frozen from.

    Args:
      environment: Name of the environment, as in `registry.spec`.
      name: Name of a panel of the package, or a file.
      options: Options of the environment's builder.

    Raises:
      InputError: no such panel, or other data.
    """
    panel = find_panel(name, environment, panel_folder(environment))
    env = registry.make(environment, **options)
    try:
        return check_panel(panel, env)
    finally:
        env.close()


def panel_folder(name: str) -> Path:
    """The folder `panels` of an environment, beside its module."""
    origin, colon, _ = name.partition(":")
    if not colon or origin in registry.INCOMING:
        return Path(__file__).parent / origin / "panels"
    registry.spec(name)  # imports the module
    return Path(str(sys.modules[origin].__file__)).parent / "panels"
