"""Validates results of environments, in the worker process and again in the pool.

A malformed value raises `StepError`, which costs the episode. A valid result is built anew from
exactly the types of types.py and plain values, so it can be sent as data. `task_lists` does the
same for tasks.
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.types import Observation, StepError, StepResult

MAX_REWARD = 1e6  # absolute value
MAX_CHARACTERS = 1_000_000  # of one observation: text, anchor, task and admissible actions together
_MESSAGE_CHARACTERS = 80  # of a value in a message


def validate_observation(value: Any) -> Observation:
    """Returns the observation, built anew.

    Raises:
      StepError: The text names the field, its value and the allowed values.
    """
    _require(isinstance(value, Observation), "observation", value, "a types.Observation")
    text = _validate_text("text", value.text)
    anchor = _validate_text("anchor", value.anchor)
    task = _validate_text("task", value.task)
    admissible = value.admissible
    if admissible is not None:
        _require(isinstance(admissible, tuple), "admissible", admissible, "a tuple of str")
        admissible = tuple(_validate_text("admissible", action) for action in admissible)
    # The sum is limited, not each text: the list of actions may have any length.
    size = len(text) + len(anchor) + len(task) + sum(map(len, admissible or ()))
    _require(
        size <= MAX_CHARACTERS, "observation", f"{size:,} characters", f"at most {MAX_CHARACTERS:,}"
    )
    return Observation(text, anchor, admissible, task, _validate_images(value.images, text))


def _validate_images(value: Any, text: str) -> tuple[np.ndarray, ...]:
    """Returns the images as plain arrays whose memory is contiguous."""
    _require(isinstance(value, tuple), "images", value, "a tuple of arrays")
    if not value:
        return ()
    from gigpo_jax.env_bridge.image_faults import find_fault

    fault = find_fault(value, text)
    if fault is not None:
        _require(False, "images", *fault)
    # Answers send the bytes of an image in row order; a view such as a flipped image has another
    # order.
    return tuple(map(np.ascontiguousarray, value))


def validate_result(value: Any) -> StepResult:
    """Returns the result of a step with plain numbers and only the documented keys of `info`.

    Raises:
      StepError: As in `validate_observation`.
    """
    _require(isinstance(value, StepResult), "result", value, "a types.StepResult")
    _require(isinstance(value.info, Mapping), "info", value.info, "a mapping")
    observation = validate_observation(value.observation)
    reward = _to_float(value.reward)
    _require(
        abs(reward) <= MAX_REWARD,
        "reward",
        value.reward,
        f"a number from {-MAX_REWARD:g} to {MAX_REWARD:g}",
    )
    done = _validate_flag("done", value.done)
    won = _validate_flag('info["won"]', value.info.get("won"))
    score = _to_float(value.info.get("score"))
    # A missing or malformed score is NaN here, and fails the comparison too.
    _require(0.0 <= score <= 1.0, 'info["score"]', value.info.get("score"), "a number from 0 to 1")
    info: dict[str, bool | float] = {"won": won, "score": score}
    if "regret" in value.info:
        regret = _to_float(value.info["regret"])
        _require(
            0 <= regret <= MAX_REWARD,
            'info["regret"]',
            value.info["regret"],
            f"a number from 0 to {MAX_REWARD:g}",
        )
        info["regret"] = regret
    return StepResult(observation, reward, done, info)


def _validate_flag(name: str, value: Any) -> bool:
    _require(isinstance(value, (bool, np.bool_)), name, value, "a bool")
    return bool(value)


def _to_float(value: Any) -> float:
    """Returns a real number as a float, and otherwise NaN, which fails every comparison."""
    try:
        # Only numbers: float("1") would accept text.
        return float(value) if isinstance(value, Real) else math.nan
    # An int of more than 308 digits.
    except OverflowError:
        return math.nan


def _validate_text(name: str, value: Any) -> str:
    """Returns a text as `str` itself."""
    _require(isinstance(value, str), name, value, "str")
    # Not str(value): a subclass may define it in its own way.
    return str.__str__(value)


def _require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise StepError(f"malformed result: {name} is {show_value(value)}; allowed: {allowed}")


def show_value(value: Any) -> str:
    """Returns a value as a short text; containers, which may be long, are shown by their type."""
    if isinstance(value, (list, tuple, Mapping, np.ndarray)):
        return f"a {type(value).__name__}"
    try:
        return f"{value!r:.{_MESSAGE_CHARACTERS}}"
    except Exception:  # __repr__ of an environment's object may raise anything
        return f"a {type(value).__name__}"
