"""Turns for tests that care about few of their fields."""

from typing import Any

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Step, Trajectory, Turn

ONE = np.zeros(1, np.int32)
PLAIN: dict[str, Any] = {
    "prompt_tokens": ONE,
    "response_tokens": ONE,
    "logprobs": ONE.astype(np.float32),
    "prompt": "",
    "response": "",
    "action": "",
    "valid": True,
    "admissible": None,
    "observation": "",
    "anchor": "",
    "reward": 0.0,
    "penalty": 0.0,
    "finish_reason": "stop",
    "version": 0,
}


def make_turn(**fields: Any) -> Turn:
    """A turn with these fields; without more, it has one response token and no text."""
    return Turn(**PLAIN | fields)


def make_step(trajectory: int, step: int, turn: Turn, **fields: Any) -> Step:
    """A step of an episode with these fields, of group 0 and of a task without a type."""
    task = Task("task", "", "train")
    episode = {"task": task, "group": 0, "member": trajectory, "turns": [turn] * (step + 1)}
    return Step(trajectory, step, Trajectory(**episode | fields), turn)
