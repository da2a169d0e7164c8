"""Checks what an environment returned, once, where it enters: in the worker process, before it is sent.

A malformed value raises `StepError`, which costs the episode. What passes is built anew from exactly the types of
types.py and plain values: the learner's process unpickles it, and never imports an environment's own types.
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.types import IMAGE, Observation, StepError, StepResult, Task

MAX_REWARD = 1e6  # absolute value
MAX_CHARACTERS = 1_000_000  # of one observation: text, anchor, task and admissible actions together
MAX_PIXELS = 4_000_000  # of one observation: all its images together
_SHOWN = 80  # characters of a value in a message


def checked_tasks(value: Any) -> list[Task]:
    """The tasks of a split as a list; raises StepError."""
    return [_task(task) for task in value]


def _task(task: Any) -> Task:
    fields = (task.id, task.type, task.split, task.data, task.answer) if isinstance(task, Task) else (None,)
    if not all(isinstance(field, str) for field in fields):
        raise StepError(f"malformed task {_show(task)}: tasks are types.Task, their fields str")
    return Task(*map(str.__str__, fields))


def checked_observation(value: Any) -> Observation:
    """The observation; raises StepError, whose text names the field, the value and what is allowed."""
    _require(isinstance(value, Observation), "observation", value, "a types.Observation")
    text, anchor, task = (_text(name, getattr(value, name)) for name in ("text", "anchor", "task"))
    listed = value.admissible
    if listed is not None:
        _require(isinstance(listed, tuple), "admissible", listed, "a tuple of str")
        listed = tuple([_text("admissible", action) for action in listed])
    size = sum(map(len, (text, anchor, task, *(listed or ()))))
    _require(size <= MAX_CHARACTERS, "observation", f"{size:,} characters", f"at most {MAX_CHARACTERS:,}")
    return Observation(text, anchor, listed, task, _images(value.images, text))


def _images(value: Any, text: str) -> tuple[np.ndarray, ...]:
    """The images as plain arrays whose memory is contiguous."""
    _require(isinstance(value, tuple), "images", value, "a tuple of arrays")
    if not value:
        return ()
    for image in value:
        fits = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
        what = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else image
        _require(fits and image.size > 0, "images", what, "uint8 [H, W, 3], at least one pixel each")
    pixels = sum(image.size // 3 for image in value)
    _require(pixels <= MAX_PIXELS, "images", f"{pixels:,} pixels", f"at most {MAX_PIXELS:,} in all")
    marks = text.count(IMAGE)
    _require(marks == len(value), "images", f"{len(value)} for {marks} {IMAGE} in the text", f"one for each {IMAGE}")
    return tuple(map(np.ascontiguousarray, value))


def checked_result(value: Any) -> StepResult:
    """The result of a step, with plain numbers and only "won" and "score" in `info`; raises StepError."""
    _require(isinstance(value, StepResult), "result", value, "a types.StepResult")
    info = value.info
    _require(isinstance(info, Mapping), "info", info, "a mapping")
    observation = checked_observation(value.observation)
    reward = _number(value.reward)
    _require(abs(reward) <= MAX_REWARD, "reward", value.reward, f"a number from {-MAX_REWARD:g} to {MAX_REWARD:g}")
    _require(isinstance(value.done, (bool, np.bool_)), "done", value.done, "a bool")
    _require(isinstance(info.get("won"), (bool, np.bool_)), 'info["won"]', info.get("won"), "a bool")
    score = _number(info.get("score"))
    _require(0.0 <= score <= 1.0, 'info["score"]', info.get("score"), "a number from 0 to 1")
    kept: dict[str, bool | float] = {"won": bool(info["won"]), "score": score}
    if "regret" in info:
        kept["regret"] = _number(info["regret"])
        _require(kept["regret"] >= 0, 'info["regret"]', info["regret"], "a number of at least 0")
    return StepResult(observation, reward, bool(value.done), kept)


def _number(value: Any) -> float:
    """A real number as a float; NaN for anything else."""
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.nan


def _text(name: str, value: Any) -> str:
    """A text as `str` itself, whatever a class derived from it makes of `str(value)`."""
    _require(isinstance(value, str), name, value, "str")
    return str.__str__(value)


def _require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise StepError(f"malformed result: {name} is {_show(value)}; allowed: {allowed}")


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple, Mapping, np.ndarray)):  # may be long
        return f"a {type(value).__name__}"
    try:
        return f"{value!r:.{_SHOWN}}"
    except Exception:  # __repr__ of an environment's object
        return f"a {type(value).__name__}"
