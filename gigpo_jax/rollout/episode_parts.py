"""What an episode does beside acting: texts that the policy writes, grades, resampling.

Each is an `EpisodePart` in the folder of its method; `part_table` finds what a config needs.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ml_collections import ConfigDict

from gigpo_jax.engines.base import Completion
from gigpo_jax.env_bridge.prompts import History, Prompt
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.trajectory import BEGINNING, Past, Trajectory, Turn

_T = TypeVar("_T")


@dataclass(frozen=True)
class EpisodeJob:
    """What is played as one episode.

    Attributes:
      task: Task of the episode.
      group, member: Numbers that the trajectory records.
      key: Function (member, number) -> random key; no step has the number of a text or a retry.
      past: Actions that are replayed before the policy acts; the trajectory begins after them.
        Oracles continue from measured states in this way, forks from states of their group, and
        others from states of an expert.
      earlier_trials: Earlier trials of the episode.
      is_last_trial: Whether no trial of the task follows.
      shared: What parts of the group's episodes share, by name; None: they share nothing.
    """

    task: Task
    group: int
    member: int
    key: Callable[[int, int], tuple[int, int]]
    past: Past = BEGINNING
    earlier_trials: tuple[Trajectory, ...] = ()
    is_last_trial: bool = True
    shared: dict[Any, Any] | None = None


@dataclass(eq=False)
class Episode:
    """An episode while it is played.

    Attributes:
      job: What is played.
      trajectory: Turns so far.
      history: Texts that prompts show.
      writer: `EpisodeRunner` that builds prompts and samples; None in a replay of a saved episode.
      observation: Observation that is answered next.
      max_steps: Largest number of actions.
      parts: What the episode does beside acting, in order.
      step: Index of the action that is chosen next, from the start of the episode.
      prompt: Prompt of this action, if a part has built it already.
    """

    job: EpisodeJob
    trajectory: Trajectory
    history: History
    writer: Any  # an `EpisodeRunner`, whose module imports this one
    observation: Observation
    max_steps: int
    parts: "tuple[EpisodePart, ...]" = ()
    step: int = 0
    prompt: Prompt | None = None

    def key(self, number: int) -> tuple[int, int]:
        """The random key of a request of this episode."""
        return self.job.key(self.job.member, number)

    def build_prompt(self) -> Prompt:
        """Builds the prompt of the next action, or of the text that is due before it."""
        prompt: Prompt = self.writer.build_prompt(self.observation, self.history)
        return prompt

    def take_prompt(self) -> Prompt:
        """The prompt of the next action."""
        prompt = self.prompt or self.build_prompt()
        self.prompt = None
        return prompt


class EpisodePart:
    """A part of an episode beside acting; a new one is made for each episode.

    Every method may be left out.

    Attributes:
      metrics: Names in `Turn.metrics` of the turns that it returns.
      is_for_training: Whether episodes of training alone have it.
    """

    metrics: tuple[str, ...] = ()
    is_for_training = False

    def __init__(self, config: ConfigDict) -> None:
        """Reads the config of the episode's environment."""

    def reserve(self, history: History) -> int:
        """Adds the longest texts of the part to a prompt, and returns their missing tokens."""
        return 0

    def observe(self, observation: Observation) -> None:
        """Reads an observation before it is answered, also the observations of replayed actions."""

    async def before_prompt(self, episode: Episode) -> None:
        """Changes what the next prompt shows."""

    def samples_again(self, episode: Episode, completion: Completion, attempt: int) -> bool:
        """Whether the response is dropped and another one sampled; the first attempt is 0."""
        return False

    def after_turn(self, episode: Episode, turn: Turn) -> Turn:
        """Returns the turn as it is recorded; `episode.observation` is the one before it."""
        return turn

    def after_text(self, episode: Episode, text: Turn) -> Turn:
        """Returns a text that prompts show as it is recorded."""
        return text

    async def at_end(self, episode: Episode) -> None:
        """Adds to a trajectory whose last action is made."""


async def measure_wait(awaitable: Awaitable[_T], trajectory: Trajectory, field_name: str) -> _T:
    """Adds the seconds waited to a field of the trajectory."""
    start = time.perf_counter()
    try:
        return await awaitable
    finally:
        # Also where it failed: the time was spent.
        seconds = getattr(trajectory, field_name) + time.perf_counter() - start
        setattr(trajectory, field_name, seconds)
