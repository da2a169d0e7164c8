"""Frozen panels (eval sets): lists of tasks to evaluate on, with hashes of their content.

A panel is a JSON file. `check_panel` compares it with the tasks of an environment, so that two results for the same
panel are about the same tasks.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.errors import InputError

_DIGITS = 16  # hexadecimal digits kept of a task's hash


@dataclass(frozen=True)
class Panel:
    """A frozen list of tasks.

    Attributes:
      environment: name in the registry.
      split: of all its tasks.
      tasks: (task id, hash of the task's content in hexadecimal) in the order of evaluation; the hash is "" where the
        environment has no method `digest(task) -> str`.
      made_from: what the environment's data was made from, plain values; {} for data that is downloaded.
    """

    name: str
    environment: str
    split: str
    tasks: tuple[tuple[str, str], ...]
    made_from: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(task_id for task_id, _ in self.tasks)

    @property
    def sha256(self) -> str:
        """Hash over the environment, the split, and the ids and hashes of all tasks in order."""
        text = json.dumps([self.environment, self.split, self.tasks], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _content(env: TextEnv, task: Task) -> str:
    digest: Callable[[Task], str] | None = getattr(env, "digest", None)
    return digest(task)[:_DIGITS] if digest is not None else ""


def freeze_panel(
    name: str,
    environment: str,
    env: TextEnv,
    split: str,
    *,
    ids: Sequence[str] | None = None,
    made_from: Mapping[str, Any] | None = None,
) -> Panel:
    """Makes a panel of the tasks `ids` of an environment, by default all of the split in the environment's order.

    Raises:
      InputError: there are no tasks, an id does not exist, or two tasks have the same.
    """
    tasks = env.tasks(split)
    known = {task.id: task for task in tasks}
    chosen = [task.id for task in tasks] if ids is None else list(ids)
    if not chosen:
        raise InputError(f"config.env.split={split!r}: no tasks; name another split, or make its data")
    if twice := [task_id for task_id, count in Counter(chosen).items() if count > 1]:
        raise InputError(f"ids: {twice[0]!r} stands there twice; give each task of the split {split} an id of its own")
    if missing := [task_id for task_id in chosen if task_id not in known]:
        raise InputError(f"ids: the split {split} has no task {missing[0]!r}")
    content = tuple((task_id, _content(env, known[task_id])) for task_id in chosen)
    return Panel(name, environment, split, content, dict(made_from or {}))


def write_panel(path: str | os.PathLike, panel: Panel) -> None:
    """Writes a panel, one task per line; raises InputError if it cannot be written."""
    head = {
        "name": panel.name,
        "environment": panel.environment,
        "split": panel.split,
        "made_from": dict(panel.made_from),
        "sha256": panel.sha256,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
    rows = ",\n".join(f"  {json.dumps(list(task))}" for task in panel.tasks)
    text = "{\n" + "".join(lines) + ' "tasks": [\n' + rows + "\n ]\n}\n"
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as err:
        raise InputError(f"panel={path}: cannot write it ({err.strerror})") from err


def read_panel(path: str | os.PathLike) -> Panel:
    """Reads a panel; raises InputError if the file is missing, is not a panel, or was edited."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        tasks = tuple((task_id, content) for task_id, content in found["tasks"])
        texts = (found["name"], found["environment"], found["split"], *(text for task in tasks for text in task))
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a name, an id or a hash is no text")
        if not isinstance(found["made_from"], dict):
            raise TypeError("made_from is no object")
        panel = Panel(found["name"], found["environment"], found["split"], tasks, found["made_from"])
        stored = found["sha256"]
    except OSError as err:
        raise InputError(f"panel={path}: cannot read it ({err.strerror})") from err
    except (ValueError, KeyError, TypeError) as err:
        raise InputError(f"panel={path}: not a panel ({err}); make it again") from err
    if stored != panel.sha256:
        raise InputError(f"panel={path}: its hash does not match: it was edited; restore it or make it again")
    return panel


def find_panel(name: str, environment: str, folder: Path, *, key: str = "panel") -> Panel:
    """Reads a panel of an environment: one in `folder`, which come with it, by its name, else a JSON file.

    Raises:
      InputError: there is none, it is of another environment, or edited; `key` is where the user set the name.
    """
    for path in (folder / f"{name}.json", Path(name)):
        if path.is_file():
            panel = read_panel(path)
            if panel.environment != environment:
                raise InputError(f"{key}={name!r}: a panel of {panel.environment}, not of {environment}")
            return panel
    names = ", ".join(sorted(path.stem for path in folder.glob("*.json"))) or "none"
    raise InputError(f"{key}={name!r}: no such file, and no panel of {environment} (those are: {names})")


def check_panel(panel: Panel, env: TextEnv) -> tuple[Task, ...]:
    """The tasks of a panel in its order; raises InputError if one is missing in `env` or its content differs."""
    known = {task.id: task for task in env.tasks(panel.split)}
    made_from = ", ".join(f"{key}={value}" for key, value in panel.made_from.items())
    hint = f"the panel's data was generated with {made_from}" if made_from else "is this the same data?"
    for task_id, content in panel.tasks:
        if task_id not in known:
            raise InputError(f"panel={panel.name}: its task {task_id!r} is not in the data; {hint}")
        if content and _content(env, known[task_id]) != content:
            raise InputError(f"panel={panel.name}: the content of its task {task_id!r} differs; {hint}")
    return tuple(known[task_id] for task_id in panel.ids)
