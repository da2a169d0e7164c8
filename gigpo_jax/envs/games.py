"""Small games as environments: an episode is a `Game`, `GameEnv` plays it for the rest of the program.

A game follows from the task's id alone. A quarter of all contents belongs to the split `test`, the others to `train`,
so the splits share no level and no deal.
"""

import hashlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from gigpo_jax.env_bridge.base import check_fractions, check_whole
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.types import IMAGE, EnvError, Observation, StepResult, Task
from gigpo_jax.errors import InputError

SPLITS = {"train": 16384, "test": 512}  # tasks of each
_T = TypeVar("_T")


class Game(Protocol):
    """One episode."""

    @property
    def content(self) -> str:
        """All that the task decides, as text."""

    @property
    def won(self) -> bool:
        """Whether the goal is reached."""

    def act(self, action: str) -> tuple[float, bool]:
        """Acts, with any text; returns the reward and whether the game is over."""

    def state(self) -> str:
        """What a player can see, as text: the anchor state."""

    def text(self, *, picture: bool) -> str:
        """The observation in words; beside a picture, what it does not show."""

    def picture(self) -> np.ndarray:
        """The same as an image, uint8 [H, W, 3]."""

    def actions(self) -> tuple[str, ...]:
        """The actions that do something here."""

    def remaining(self) -> int | None:
        """The fewest actions that win, from full knowledge; None if the game is lost."""


class GameEnv:
    """A `TextEnv` of one kind of game."""

    def __init__(
        self,
        ids: Mapping[str, Sequence[str]],
        start: Callable[[Task], Game],
        goal: str,
        *,
        observation: str,
        max_steps: int,
        regret: bool,
    ) -> None:
        """Checks the options.

        Args:
          ids: split -> the ids of its tasks.
          start: begins an episode of a task.
          goal: the task in words.
          observation: "picture" or "text".
          max_steps: length of an episode.
          regret: whether `info` has the regret of each action.
        """
        if observation not in ("picture", "text"):
            raise InputError(f"observation={observation!r}: choose picture or text")
        check_whole("max_steps", max_steps, 1)
        self._ids, self._start, self._goal = ids, start, goal
        self._pictures, self._max_steps, self._regret = observation == "picture", max_steps, regret
        self._game: Game | None = None
        self._last: StepResult | None = None
        self._steps = self._remaining = 0

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split; the game follows from the id."""
        if split not in self._ids:
            raise InputError(f"config.env.split={split!r}: this environment has the splits {', '.join(self._ids)}")
        return [Task(name, "", split) for name in self._ids[split]]

    def digest(self, task: Task) -> str:
        """SHA-256 of all that the task decides, in hexadecimal; panels freeze it."""
        return hashlib.sha256(self._start(task).content.encode()).hexdigest()

    def reset(self, task: Task) -> Observation:
        if task.split not in self._ids:
            raise InputError(f"task={task.id!r}: there is no split {task.split!r}; list the tasks again")
        self._game, self._steps = self._start(task), 0
        self._last = StepResult(self._observe(self._game), 0.0, False, {"won": False, "score": 0.0})
        self._remaining = self._distance(self._game)
        return self._last.observation

    def step(self, action: str) -> StepResult:
        """Acts; after the end it returns the last observation, with reward 0."""
        game, last = self._game, self._last
        if game is None or last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if last.done:
            return StepResult(last.observation, 0.0, True, last.info)
        reward, over = game.act(action)
        self._steps += 1
        info: dict[str, bool | float] = {"won": game.won, "score": float(game.won)}
        if self._regret:
            before, self._remaining = self._remaining, self._distance(game)
            info["regret"] = float(self._remaining - before + 1 if before < self._max_steps else 0)
        self._last = StepResult(self._observe(game), reward, over or self._steps >= self._max_steps, info)
        return self._last

    def _distance(self, game: Game) -> int:
        """The fewest actions that win; the length of an episode if there are no more than that."""
        if not self._regret:
            return 0
        remaining = game.remaining()
        return self._max_steps if remaining is None else min(remaining, self._max_steps)

    def _observe(self, game: Game) -> Observation:
        text, images = game.text(picture=self._pictures), (game.picture(),) if self._pictures else ()
        return Observation(IMAGE + text if images else text, game.state(), game.actions(), self._goal, images)

    def close(self) -> None:
        self._game = self._last = None


def numbered(name: str) -> dict[str, list[str]]:
    """The ids of the tasks of a game that can be drawn without end."""
    return {split: [f"{name}/{split}/{number:05d}" for number in range(count)] for split, count in SPLITS.items()}


def draw(task: Task, rules: str, make: Callable[[random.Random], _T | None], content: Callable[[_T], str]) -> _T:
    """The first thing drawn for a task that belongs to its split.

    Args:
      task: its id and split decide.
      rules: the options that decide, as text.
      make: draws a thing, or None for one that cannot be used.
      content: the thing as text.
    """
    for attempt in itertools.count():
        made = make(random.Random(f"{task.id} {rules} {attempt}"))
        if made is not None and _is_test(content(made)) == (task.split == "test"):
            return made
    raise AssertionError  # the loop has no end


def _is_test(content: str) -> bool:
    return hashlib.sha256(content.encode()).digest()[0] < 64


def observation_alone(inputs: PromptInput, /) -> str:
    """The prompt for tiny models trained from scratch: the words of the observation, its picture included."""
    return " ".join(inputs.observation.split())


class GameExpert:
    """Plays the best action in the state that it sees, or errs."""

    def __init__(self, best: Callable[[str], str], seed: int, random_fraction: float) -> None:
        """Takes a function from `Game.state` to the best action, and the probability of a random action at a step."""
        check_fractions(random_fraction=random_fraction)
        self._best, self._random_fraction = best, random_fraction
        self._random = random.Random(f"game expert {seed}")

    def act(self, observation: Observation) -> str:
        if self._random.random() < self._random_fraction:
            return self._random.choice(observation.admissible or ("",))
        return self._best(observation.anchor)
