"""The Protocol that the author of an environment implements, and checks of its options.

`experts` and `harnesses` have the Protocols of experts and of agent programs.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Observation, StepResult, Task

# Called with 1 after each game, product or passage that was generated.
Progress = Callable[[int], object]


def no_progress(done: int) -> None:
    """A `Progress` that shows nothing."""


class TextEnv(Protocol):
    """A multi-turn text environment.

    One object plays one episode at a time. The same task and actions give the same observations,
    whatever was played before. `step` accepts any text: the observation after a meaningless action
    says so. Failures that do not depend on the action, such as a server that is down, raise
    `types.EnvError`.

    An environment that waits for something outside its process may have `async def
    step_async(action) -> StepResult` beside `step`; its worker handles other episodes in the
    meantime. One that opens something may have `prepare()`. Every worker calls it once, before the
    first episode, in the time limit of its start; an InputError ends the command.
    """

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, always in the same order."""

    def reset(self, task: Task) -> Observation:
        """Starts an episode."""

    def step(self, action: str) -> StepResult:
        """Acts once; after `done` a `reset` must follow."""

    def close(self) -> None:
        """Frees its resources."""


def check_whole(
    key: str, value: object, minimum: int | None = None, maximum: int | None = None
) -> None:
    """Raises InputError unless a value is a whole number from `minimum` to `maximum`."""
    # bool is a subclass of int: True would pass as 1.
    if isinstance(value, int) and not isinstance(value, bool):
        large_enough = minimum is None or value >= minimum
        small_enough = maximum is None or value <= maximum
        if large_enough and small_enough:
            return
    allowed = ""
    if maximum is not None:
        allowed = f" from {minimum} to {maximum}"
    elif minimum is not None:
        allowed = f" of at least {minimum}"
    raise InputError(f"must be a whole number{allowed}", key=key, value=repr(value))
