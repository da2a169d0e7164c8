"""Freezes panels (eval sets) of any environment, and checks data against them."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from gigpo_jax.env_bridge.panels import Panel, check_panel, find_panel, freeze_panel
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry


def freeze(
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
      options: of the environment's builder.
      generate: as `env.generate` in a config: the data is generated with these values, or found in the cache folder.
      each: so many tasks of every type (`in_turn`), so that the first tasks are a fair sample; None for all tasks.
    """
    if generate:
        options = {**options, "data": registry.generate(environment, cache_folder(environment), **generate)}
    env = registry.make(environment, **options)
    try:
        ids = None if each is None else in_turn(env.tasks(split), each)
        return freeze_panel(name, environment, env, split, ids=ids, made_from=generate)
    finally:
        env.close()


def in_turn(tasks: Sequence[Task], each: int) -> list[str]:
    """Ids of `each` tasks of every type, spread evenly over it; the types take turns."""
    by_type: dict[str, list[str]] = {}
    for task in tasks:
        by_type.setdefault(task.type, []).append(task.id)
    rows = []
    for ids in by_type.values():
        count = min(each, len(ids))
        rows.append([ids[place * len(ids) // count] for place in range(count)])
    return [task_id for turn in zip_longest(*rows) for task_id in turn if task_id is not None]


def check(environment: str, name: str, *, options: Mapping[str, Any]) -> tuple[Task, ...]:
    """The tasks of a panel (of the package, or a file), if the environment's data is what it was frozen from.

    Raises:
      InputError: no such panel, or other data.
    """
    panel = find_panel(name, environment, registry.panel_folder(environment))
    env = registry.make(environment, **options)
    try:
        return check_panel(panel, env)
    finally:
        env.close()
