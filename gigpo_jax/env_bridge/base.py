"""The Protocols that the author of an environment, an expert or a harness implements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class SessionAddress:
    """Where a harness finds the policy for one episode: what a client of an OpenAI-compatible server needs.

    Attributes:
      base_url: such as http://127.0.0.1:8000/sessions/ID/v1; every request to it belongs to the episode.
      api_key: the bearer token.
      model: the name of the policy.
    """

    base_url: str
    api_key: str
    model: str


class Harness(Protocol):
    """An agent program that plays whole episodes against the endpoint of the policy (docs/serve.md).

    One object plays one episode at a time.
    """

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, always in the same order."""

    def play(self, task: Task, session: SessionAddress) -> object:
        """Plays one episode and posts its reward to BASE_URL/reward; what it returns is not read.

        It may be `async def`; otherwise it runs in a thread. An exception costs the episode.
        """

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
