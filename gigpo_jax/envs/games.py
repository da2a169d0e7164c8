"""Small games as environments: an episode is a `SmallGame`, and `GameEnv` plays it.

A game follows from the task's id alone. A quarter of all contents belongs to the split `test`, the
others to `train`, so the splits share no level and no deal.
"""

import hashlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.settings import Rule
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.option_checks import check_fractions, check_split
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.types import IMAGE, EnvError, Observation, StepResult, Task
from gigpo_jax.envs.entry_types import Option

SPLITS = {"train": 16384, "test": 512}  # number of tasks
OBSERVATION_OPTION = Option(str, "picture", "kind of observation: picture or text")
# A value, so that commands with env.anchor=state work in every environment.
ANCHOR = Rule("state, the whole visible position", "state".__eq__)
RANDOM_FRACTION_OPTION = Option(float, 0.0, "probability of a random action at a step")
_T = TypeVar("_T")


class SmallGame(Protocol):
    """One episode."""

    @property
    def content(self) -> str:
        """All content that follows from the task, as text."""

    @property
    def won(self) -> bool:
        """Whether the goal is reached."""

    def act(self, action: str) -> tuple[float, bool]:
        """Acts by any text; returns the reward, and whether the game is over."""

    def state(self) -> str:
        """The visible state as text: the anchor state."""

    def text(self, *, picture: bool) -> str:
        """Returns the observation in words; beside a picture, only the words that it lacks."""

    def picture(self) -> np.ndarray:
        """The state as an image, uint8 [H, W, 3]."""

    def actions(self) -> tuple[str, ...]:
        """The actions that have an effect in this state."""

    def remaining(self) -> int | None:
        """Counts the fewest winning actions by full knowledge of the game; None if lost."""


class GameEnv:
    """A `TextEnv` of one kind of game."""

    def __init__(
        self,
        ids: Mapping[str, Sequence[str]],
        start_game: Callable[[Task], SmallGame],
        goal: str,
        *,
        observation: str,
        max_steps: int,
        regret: bool,
    ) -> None:
        """Checks the options.

        Args:
          ids: Split -> ids of its tasks.
          start_game: Function that begins an episode of a task.
          goal: Goal in words.
          observation: "picture" or "text".
          max_steps: Length of an episode.
          regret: Whether `info` has the regret of each action.
        """
        if observation not in ("picture", "text"):
            raise InputError("must be picture or text", key="observation", value=repr(observation))
        check_whole("max_steps", max_steps, 1)
        self._ids = ids
        self._start_game = start_game
        self._goal = goal
        self._shows_pictures = observation == "picture"
        self._max_steps = max_steps
        self._regret = regret
        self._game: SmallGame | None = None
        self._result: StepResult | None = None
        self._steps = 0
        self._remaining = 0

    def tasks(self, split: str) -> Sequence[Task]:
        """Lists a split's tasks, whose ids determine the games."""
        check_split(split, self._ids)
        return [Task(name, "", split) for name in self._ids[split]]

    def digest(self, task: Task) -> str:
        """SHA-256 of the task's content, in hexadecimal; panels freeze it."""
        return hashlib.sha256(self._start_game(task).content.encode()).hexdigest()

    def reset(self, task: Task) -> Observation:
        # The split decides the draw: another word would draw a game of the split "train".
        if task.split not in self._ids:
            raise InputError(
                f"there is no split {task.split!r}",
                key="task",
                value=repr(task.id),
                fix="list the tasks again",
            )
        self._game = self._start_game(task)
        self._steps = 0
        observation = self._observe(self._game)
        self._result = StepResult(observation, 0.0, False, {"won": False, "score": 0.0})
        if self._regret:
            self._remaining = self._count_remaining(self._game)
        return observation

    def step(self, action: str) -> StepResult:
        """Acts; after the end it repeats the last observation, with reward 0."""
        if self._game is None or self._result is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if self._result.done:
            return StepResult(self._result.observation, 0.0, True, self._result.info)
        game = self._game
        reward, is_over = game.act(action)
        self._steps += 1
        info: dict[str, bool | float] = {"won": game.won, "score": float(game.won)}
        if self._regret:
            info["regret"] = self._measure_regret(game)
        done = is_over or self._steps >= self._max_steps
        self._result = StepResult(self._observe(game), reward, done, info)
        return self._result

    def _measure_regret(self, game: SmallGame) -> float:
        """Counts the actions that the last one wasted; 0 if the game was lost before it."""
        previous_remaining = self._remaining
        self._remaining = self._count_remaining(game)
        # A lost game has this distance already; further actions waste nothing more.
        if previous_remaining >= self._max_steps:
            return 0.0
        return float(self._remaining - previous_remaining + 1)

    def _count_remaining(self, game: SmallGame) -> int:
        """Counts the fewest winning actions, capped at the episode's length."""
        remaining = game.remaining()
        return self._max_steps if remaining is None else min(remaining, self._max_steps)

    def _observe(self, game: SmallGame) -> Observation:
        text = game.text(picture=self._shows_pictures)
        images: tuple[np.ndarray, ...] = ()
        if self._shows_pictures:
            text = IMAGE + text
            images = (game.picture(),)
        return Observation(text, game.state(), game.actions(), self._goal, images)

    def close(self) -> None:
        self._game = None
        self._result = None


def make_task_ids(name: str) -> dict[str, list[str]]:
    """Makes task ids by split, for games drawn endlessly."""
    ids = {}
    for split, count in SPLITS.items():
        ids[split] = [f"{name}/{split}/{number:05d}" for number in range(count)]
    return ids


def draw_for_split(
    task: Task,
    rules: str,
    draw_content: Callable[[random.Random], _T | None],
    format_content: Callable[[_T], str],
) -> _T:
    """Draws contents until one is of the task's split.

    Args:
      task: Task; the content follows from its id and its split.
      rules: Options that the content depends on, as text.
      draw_content: Function that draws a content; None for one that cannot be used.
      format_content: Function that gives a content as text.
    """
    # Ends with probability 1: of all contents, each attempt is of the split with 1/4 or 3/4.
    for attempt in itertools.count():
        content = draw_content(random.Random(f"{task.id} {rules} {attempt}"))
        if content is not None and _is_test(format_content(content)) == (task.split == "test"):
            return content
    raise AssertionError  # the loop has no end


def _is_test(content: str) -> bool:
    # By content and not by id: the same room under another id stays in its split.
    return hashlib.sha256(content.encode()).digest()[0] < 64


def show_observation(inputs: PromptInput, /) -> str:
    """Makes the prompt for tiny models: the words of the observation, its picture included."""
    return " ".join(inputs.observation.split())


class GameExpert:
    """Plays the best action in the observed state, or errs."""

    def __init__(
        self, choose_best: Callable[[str], str], seed: int, random_fraction: float
    ) -> None:
        """Checks the fraction.

        Args:
          choose_best: Function from `SmallGame.state` to the best action.
          seed: Seed of the random actions.
          random_fraction: Probability of a random action at a step.
        """
        check_fractions(random_fraction=random_fraction)
        self._choose_best = choose_best
        self._random_fraction = random_fraction
        # With a word of its own, so that no other generator of this seed draws the same numbers.
        self._random = random.Random(f"game expert {seed}")

    def act(self, observation: Observation) -> str:
        if self._random.random() < self._random_fraction:
            return self._random.choice(observation.admissible or ("",))
        return self._choose_best(observation.anchor)
