"""The two Protocols that an environment's author implements."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.errors import InputError

Progress = Callable[[int], object]  # called with 1 after each game, product or passage that is made


def no_progress(done: int) -> None:
    """A `Progress` that shows nothing."""


class TextEnv(Protocol):
    """A multi-turn text environment; one object plays one episode at a time.

    The same task and actions give the same observations, whatever was played before. `step` accepts any text: an
    action that means nothing leads to an observation that says so. Failures that do not depend on the action, such as
    a server that is down, raise `types.EnvError`.

    An environment that waits for something outside its process may have `async def step_async(action) -> StepResult`
    beside `step`; its worker handles other episodes in the meantime.
    """

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, always in the same order."""

    def reset(self, task: Task) -> Observation:
        """Starts an episode."""

    def step(self, action: str) -> StepResult:
        """Acts; after `done` the episode is over and `reset` must follow."""

    def close(self) -> None:
        """Frees its resources."""


class Expert(Protocol):
    """Demonstrates one episode from an agent's observations; a new object for each episode.

    It may have `thought: str`, the reason for its last action in words; examples in prompts of agents show it.
    """

    def act(self, observation: Observation) -> str:
        """The next action; called with every observation of the episode in order."""


def check_fractions(**fractions: float) -> None:
    """Raises InputError unless options of an expert that say how often it errs are probabilities."""
    for key, fraction in fractions.items():
        if not 0.0 <= fraction <= 1.0:
            raise InputError(f"{key}={fraction!r}: give a probability between 0 and 1")


def check_whole(key: str, value: object, least: int | None = None, most: int | None = None) -> None:
    """Raises InputError unless an option is a whole number from `least` to `most`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (least is not None and value < least) or (most is not None and value > most):  # type: ignore[operator]
        ends = (f" of at least {least}" if least is not None else "") if most is None else f" from {least} to {most}"
        raise InputError(f"{key}={value!r}: give a whole number{ends}")
