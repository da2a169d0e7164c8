"""Freezing a panel of tasks into a file."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import replace_file
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.panels import Panel, hash_content


def freeze_panel(
    name: str,
    environment: str,
    env: TextEnv,
    split: str,
    *,
    ids: Sequence[str] | None = None,
    made_from: Mapping[str, Any] | None = None,
) -> Panel:
    """Makes a panel of an environment's tasks.

    Args:
      name: Name of the panel.
      environment: Name of the environment in the registry.
      env: The environment.
      split: Split of the tasks.
      ids: Tasks of the panel; by default all of the split in the environment's order.
      made_from: Options that the environment's data was generated with.

    Raises:
      InputError: There are no tasks, an id does not exist, or two tasks have the same id.
    """
    split_tasks = env.tasks(split)
    tasks = {task.id: task for task in split_tasks}
    panel_ids = list(ids) if ids is not None else [task.id for task in split_tasks]
    if not panel_ids:
        raise InputError(
            "no tasks",
            key="config.env.split",
            value=repr(split),
            fix="name another split, or make its data",
        )
    # A task that stands twice would count twice in every success rate.
    for task_id, count in Counter(panel_ids).items():
        if count > 1:
            raise InputError(
                f"{task_id!r} stands there twice",
                key="ids",
                fix=f"give each task of the split {split} an id of its own",
            )
    for task_id in panel_ids:
        if task_id not in tasks:
            raise InputError(f"the split {split} has no task {task_id!r}", key="ids")
    hashes = tuple((task_id, hash_content(env, tasks[task_id])) for task_id in panel_ids)
    return Panel(name, environment, split, hashes, dict(made_from or {}))


def write_panel(path: str | os.PathLike, panel: Panel) -> None:
    """Writes a panel, one task per line.

    Raises InputError if it cannot be written.
    """
    header = {
        "name": panel.name,
        "environment": panel.environment,
        "split": panel.split,
        "made_from": dict(panel.made_from),
        "sha256": panel.sha256,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items()]
    # A task a line, so that version control shows which tasks differ.
    rows = ",\n".join(f"  {json.dumps(list(task))}" for task in panel.tasks)
    text = "{\n" + "".join(lines) + ' "tasks": [\n' + rows + "\n ]\n}\n"
    try:
        with replace_file(Path(path)) as temporary:
            # The same bytes on every system.
            temporary.write_text(text, encoding="utf-8", newline="\n")
    except OSError as err:
        raise InputError(f"cannot write it ({err.strerror})", key="panel", value=str(path)) from err
