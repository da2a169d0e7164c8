"""Frozen panels (eval sets): lists of tasks to evaluate on, with hashes of their content.

A panel is a JSON file. `check_panel` compares it with the tasks of an environment, so that two
results for the same panel are about the same tasks.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.types import Task

_DIGITS = 16  # hexadecimal digits that a panel has of a task's hash


@dataclass(frozen=True)
class Panel:
    """A frozen list of tasks.

    Attributes:
      name: Name of the panel.
      environment: Name of the environment in the registry.
      split: Split of all tasks.
      tasks: Pairs (task id, hash of the task's content in hexadecimal) in the order of evaluation;
        the hash is "" if the environment has no method `digest(task) -> str`.
      made_from: Options that the environment's data was generated with, plain values; {} for data
        that is downloaded.
    """

    name: str
    environment: str
    split: str
    tasks: tuple[tuple[str, str], ...]
    made_from: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the tasks in the order of evaluation."""
        return tuple(task_id for task_id, _ in self.tasks)

    @property
    def sha256(self) -> str:
        """Hash of the environment, the split, and the ids and hashes of all tasks in order."""
        text = json.dumps(
            [self.environment, self.split, self.tasks], ensure_ascii=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()


def hash_content(env: TextEnv, task: Task) -> str:
    digest: Callable[[Task], str] | None = getattr(env, "digest", None)
    if digest is None:
        return ""
    # 64 bits suffice against accidents, and keep the panels' files short.
    return digest(task)[:_DIGITS]


def read_panel(path: str | os.PathLike) -> Panel:
    """Reads a panel from its file.

    Raises InputError if the file is missing, is not a panel, or was edited.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        panel = _parse_panel(content)
        stored_hash = content["sha256"]
    except OSError as err:
        raise InputError(f"cannot read it ({err.strerror})", key="panel", value=str(path)) from err
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise InputError(
            f"not a panel ({err!s:.200})", key="panel", value=str(path), fix="make it again"
        ) from err
    if stored_hash != panel.sha256:
        raise InputError(
            "its hash does not match: it was edited",
            key="panel",
            value=str(path),
            fix="restore it or make it again",
        )
    return panel


def _parse_panel(content: Any) -> Panel:
    """Returns the panel in the content of a file.

    Raises ValueError, KeyError or TypeError.
    """
    tasks = tuple((task_id, task_hash) for task_id, task_hash in content["tasks"])
    texts = [content["name"], content["environment"], content["split"]]
    for task in tasks:
        texts.extend(task)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name, an id or a hash is no text")
    if not isinstance(content["made_from"], dict):
        raise TypeError("made_from is no object")
    return Panel(
        content["name"], content["environment"], content["split"], tasks, content["made_from"]
    )


def find_panel(name: str, environment: str, folder: Path, *, key: str = "panel") -> Panel:
    """Reads an environment's panel by name or from a file.

    Args:
      name: Name of a panel in `folder`, or path of a JSON file.
      environment: Name of the environment in the registry.
      folder: Folder of the panels that come with the environment.
      key: Key with which the user set the name, for messages.

    Raises:
      InputError: There is none, it is of another environment, or it was edited.
    """
    # The published panel first: a file of the same name in the working directory must not take its
    # place.
    for path in (folder / f"{name}.json", Path(name)):
        if path.is_file():
            panel = read_panel(path)
            if panel.environment != environment:
                raise InputError(
                    f"a panel of {panel.environment}, not of {environment}",
                    key=key,
                    value=repr(name),
                )
            return panel
    raise InputError(
        f"no such file, and no panel of {environment} (those are: {panel_names(folder)})",
        key=key,
        value=repr(name),
    )


def panel_names(folder: Path) -> str:
    """The names of the panels in a folder, for messages."""
    return ", ".join(sorted(path.stem for path in folder.glob("*.json"))) or "none"


def check_panel(panel: Panel, env: TextEnv) -> tuple[Task, ...]:
    """Returns the tasks of a panel in its order.

    Raises:
      InputError: A task is missing in `env`, or its content differs.
    """
    tasks = {task.id: task for task in env.tasks(panel.split)}
    fix = "use the data that it was frozen from"
    if panel.made_from:
        options = ", ".join(f"{key}={value}" for key, value in panel.made_from.items())
        fix = f"use data that is generated with {options}"
    for task_id, content_hash in panel.tasks:
        if task_id not in tasks:
            raise InputError(
                f"its task {task_id!r} is not in the data", key="panel", value=panel.name, fix=fix
            )
        # Panels of environments without `digest` compare ids alone.
        if content_hash and hash_content(env, tasks[task_id]) != content_hash:
            raise InputError(
                f"the content of its task {task_id!r} differs",
                key="panel",
                value=panel.name,
                fix=fix,
            )
    return tuple(tasks[task_id] for task_id in panel.ids)
