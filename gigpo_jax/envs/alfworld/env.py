"""ALFWorld as a text environment: `registry.make("alfworld", data=DIR)`."""

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs.alfworld.anchors import Anchor
from gigpo_jax.envs.alfworld.data.game_folder import GAME_FILE, Skipped, data_folder, list_games
from gigpo_jax.envs.alfworld.engine.game import Game
from gigpo_jax.envs.alfworld.engine.game_file import GameFile, load_game
from gigpo_jax.envs.alfworld.engine.official import OfficialGame
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES, task_of
from gigpo_jax.errors import InputError

WON_REWARD = 10.0  # the published reward of a success
ENGINES = ("native", "official")


def _load(engine: str, path: Path) -> Game | OfficialGame:
    if engine == "official":
        return OfficialGame(path)
    stat = path.stat()
    return Game(_game_file(path, stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=64)  # the episodes of a group play the same game, many of them in one worker
def _game_file(path: Path, changed_ns: int, size: int) -> GameFile:
    del changed_ns, size  # in the key, so that a changed file is read again
    return load_game(path)


class AlfworldEnv:
    """Plays the games of a data folder, one episode at a time. See `make`.

    `skipped` has the skipped folders of every split listed so far.
    """

    def __init__(self, data: Path, engine: str, max_steps: int, anchor: str, task_types: frozenset[str], regret: bool):
        self.data = data
        self.skipped: dict[str, tuple[Skipped, ...]] = {}
        self._engine, self._max_steps, self._task_types, self._regret = engine, max_steps, task_types, regret
        self._anchor = Anchor(anchor)
        self._listed: dict[str, tuple[Task, ...]] = {}
        self._game: Game | OfficialGame | None = None
        self._loaded: Path | None = None
        self._last: StepResult | None = None
        self._steps = 0
        self._remaining: int | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """The games of a split, sorted by path; the id is the path of the game's folder in the data folder."""
        if split not in self._listed:
            found, self.skipped[split] = list_games(self.data, split)
            self._listed[split] = tuple(task for task in found if task.type in self._task_types)
            if not self._listed[split]:
                raise InputError(f"task_types={sorted(self._task_types)}: {self.data / split} has no such games")
        return self._listed[split]

    def digest(self, task: Task) -> str:
        """SHA-256 of a task's game file, in hexadecimal; panels freeze it."""
        return hashlib.sha256(self._path(task).read_bytes()).hexdigest()

    def _path(self, task: Task) -> Path:
        path = self.data / task.id / GAME_FILE
        if not path.is_file():
            raise InputError(f"task={task.id!r}: there is no {path}; list the tasks with tasks({task.split!r})")
        return path

    def reset(self, task: Task) -> Observation:
        path = self._path(task)
        if path != self._loaded or self._game is None:
            self.close()
            self._game, self._loaded = _load(self._engine, path), path
        first = self._game.reset()
        self._steps = 0
        observation = Observation(
            text=first.feedback,
            anchor=self._anchor.reset(first.feedback),
            admissible=first.admissible,
            task=task_of(first.feedback),
        )
        self._last = StepResult(observation, 0.0, False, {"won": False, "score": 0.0})
        self._remaining = self._game.remaining() if self._regret and isinstance(self._game, Game) else None
        return observation

    def step(self, action: str) -> StepResult:
        """Acts. The reward is 10 when the goal is reached; the episode ends there, or after `max_steps` steps.

        After the end it returns the last observation, with reward 0.
        """
        if self._game is None or self._last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        last = self._last
        if last.done:
            return StepResult(last.observation, 0.0, True, last.info)
        now = self._game.step(action)
        self._steps += 1
        observation = Observation(
            text=now.feedback,
            anchor=self._anchor.step(now.feedback),
            admissible=now.admissible,
            task=last.observation.task,
        )
        done = now.won or self._steps >= self._max_steps
        info: dict[str, bool | float] = {"won": now.won, "score": float(now.won)}
        if self._regret and isinstance(self._game, Game):
            before, self._remaining = self._remaining, self._game.remaining()
            if before is not None and self._remaining is not None:
                info["regret"] = float(self._remaining - before + 1)
        self._last = StepResult(observation, WON_REWARD if now.won else 0.0, done, info)
        return self._last

    def close(self) -> None:
        if isinstance(self._game, OfficialGame):
            self._game.close()
        self._game = self._loaded = self._last = None


def make(
    data: str | os.PathLike = "",
    *,
    engine: str = "native",
    max_steps: int = 50,
    anchor: str = "feedback",
    task_types: Sequence[str] = TASK_TYPES,
    regret: bool = False,
) -> AlfworldEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options. InputError for one that cannot be used."""
    if engine not in ENGINES:
        raise InputError(f"engine={engine!r}: no such engine; choose one of {', '.join(ENGINES)}")
    check_whole("max_steps", max_steps, 1)
    if isinstance(task_types, str) or not task_types:
        raise InputError(f"task_types={task_types!r}: give a list of one or more of {', '.join(TASK_TYPES)}")
    if unknown := [kind for kind in task_types if kind not in TASK_TYPES]:
        raise InputError(f"task_types={unknown[0]!r}: no such task type; choose among {', '.join(TASK_TYPES)}")
    return AlfworldEnv(data_folder(data), engine, max_steps, anchor, frozenset(task_types), regret)
