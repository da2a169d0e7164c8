"""ALFWorld as a text environment: `registry.make("alfworld", data=DIR)`."""

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs.alfworld.data.game_folder import GAME_FILE, find_data, list_games
from gigpo_jax.envs.alfworld.engine.game import Game, GameStep
from gigpo_jax.envs.alfworld.engine.game_file import GameFile
from gigpo_jax.envs.alfworld.engine.load_game import load_game
from gigpo_jax.envs.alfworld.tasks import extract_task

if TYPE_CHECKING:
    from gigpo_jax.envs.alfworld.engine.official import OfficialGame

WON_REWARD = 10.0  # the published reward of a success
ENGINES = ("native", "official")


def _load_engine(engine: str, path: Path) -> "Game | OfficialGame":
    if engine == "official":
        from gigpo_jax.envs.alfworld.engine.official import OfficialGame

        return OfficialGame(path)
    status = path.stat()
    return Game(_read_game_file(path, status.st_mtime_ns, status.st_size))


# The episodes of a group play the same game, many of them in one worker, so files are read once.
# Time and size of the file are in the cache's key: a changed file is read again.
@functools.lru_cache(maxsize=64)
def _read_game_file(path: Path, modified_ns: int, size: int) -> GameFile:
    del modified_ns, size
    return load_game(path)


class AlfworldEnv:
    """A data folder's games, one episode at a time; see `make`.

    Attributes:
      data: Data folder.
    """

    def __init__(
        self,
        data: Path,
        engine: str,
        max_steps: int,
        anchor: str,
        regret: bool,
    ):
        self.data = data
        self._engine = engine
        self._max_steps = max_steps
        self._regret = regret
        self._anchors = None
        # Without one the feedback itself is the anchor.
        if anchor != "feedback":
            from gigpo_jax.envs.alfworld.episode_anchors import EpisodeAnchors

            self._anchors = EpisodeAnchors(anchor, engine)
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._game: Game | OfficialGame | None = None
        self._game_path: Path | None = None
        self._result: StepResult | None = None
        self._steps = 0
        self._remaining: int | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """Lists the games of a split, sorted by path; the id is a path in the data folder."""
        # A walk over thousands of folders, once an environment.
        if split not in self._tasks:
            self._tasks[split] = list_games(self.data, split)
        return self._tasks[split]

    def digest(self, task: Task) -> str:
        """Returns the SHA-256 of a task's game file in hexadecimal, which panels freeze."""
        return hashlib.sha256(self._find_game(task).read_bytes()).hexdigest()

    def _find_game(self, task: Task) -> Path:
        path = self.data / task.id / GAME_FILE
        if not path.is_file():
            raise InputError(
                f"there is no {path}",
                key="task",
                value=repr(task.id),
                fix=f"list the tasks with tasks({task.split!r})",
            )
        return path

    def reset(self, task: Task) -> Observation:
        path = self._find_game(task)
        # The same game again only restarts: a load of the official engine takes about a second.
        if path != self._game_path or self._game is None:
            self.close()
            self._game = _load_engine(self._engine, path)
            self._game_path = path
        first = self._game.reset()
        self._steps = 0
        observation = self._observe(first, extract_task(first.feedback))
        self._result = StepResult(observation, 0.0, False, {"won": False, "score": 0.0})
        self._remaining = self._count_remaining()
        return observation

    def step(self, action: str) -> StepResult:
        """Acts; the reward is 10 when the goal is reached.

        The episode ends there, or after `max_steps` steps. After the end it returns the last
        observation, with reward 0.
        """
        if self._game is None or self._result is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        previous = self._result
        if previous.done:
            return StepResult(previous.observation, 0.0, True, previous.info)
        outcome = self._game.step(action)
        self._steps += 1
        observation = self._observe(outcome, previous.observation.task)
        done = outcome.won or self._steps >= self._max_steps
        reward = WON_REWARD if outcome.won else 0.0
        info: dict[str, bool | float] = {"won": outcome.won, "score": float(outcome.won)}
        previous_remaining = self._remaining
        self._remaining = self._count_remaining()
        # Unknown before or after: then there is no difference to report.
        if previous_remaining is not None and self._remaining is not None:
            # An action on a shortest way lowers the rest by 1 and has regret 0.
            info["regret"] = float(self._remaining - previous_remaining + 1)
        self._result = StepResult(observation, reward, done, info)
        return self._result

    def _observe(self, outcome: GameStep, task: str) -> Observation:
        feedback = outcome.feedback
        observation = Observation(feedback, feedback, outcome.admissible, task)
        if self._anchors is None:
            return observation
        is_first = self._steps == 0
        anchor = self._anchors.describe(observation, self._game, is_first=is_first)
        return replace(observation, anchor=anchor)

    def _count_remaining(self) -> int | None:
        """Counts the commands to the goal; None without `regret`, or if they cannot be counted."""
        if self._regret and isinstance(self._game, Game):
            return self._game.remaining()
        return None

    def close(self) -> None:
        if self._game is not None and not isinstance(self._game, Game):
            self._game.close()
        self._game = None
        self._game_path = None
        self._result = None


def make(
    data: str | os.PathLike = "",
    *,
    engine: str = "native",
    max_steps: int = 50,
    anchor: str = "feedback",
    regret: bool = False,
) -> AlfworldEnv:
    """Builds the environment; entry.py explains the options.

    Raises InputError for an unusable option.
    """
    if engine not in ENGINES:
        raise InputError(
            "no such engine",
            key="engine",
            value=repr(engine),
            fix=f"choose one of {', '.join(ENGINES)}",
        )
    check_whole("max_steps", max_steps, 1)
    return AlfworldEnv(find_data(data), engine, max_steps, anchor, regret)
