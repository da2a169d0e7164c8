"""NumberLine as an environment: a number from 0 to 5 moves to a target."""

import itertools

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.cards.picture import draw_numberline_game
from gigpo_jax.envs.games import GameEnv, GameExpert
from gigpo_jax.envs.numberline.prompt import ACTIONS

GOAL = "move the number to the target"
LAST = 5  # the line begins at 0


def _list_ids() -> dict[str, list[str]]:
    """Split -> ids of its tasks: the six whose numbers add up to 5 are "test", 24 are "train"."""
    ids: dict[str, list[str]] = {"train": [], "test": []}
    for start, target in itertools.permutations(range(LAST + 1), 2):
        # Every start and every target occurs in both splits; only their pairs differ.
        split = "test" if start + target == LAST else "train"
        ids[split].append(f"numberline/{split}/{start}-{target}")
    return ids


IDS = _list_ids()


class NumberLineGame:
    """One episode; a `games.SmallGame`.

    Attributes:
      current: Current number.
    """

    def __init__(self, start: int, target: int) -> None:
        self.current = start
        self._target = target
        self.content = self.state()

    @property
    def won(self) -> bool:
        return self.current == self._target

    def act(self, action: str) -> tuple[float, bool]:
        if action not in ACTIONS:
            return 0.0, False
        previous_distance = abs(self._target - self.current)
        step = 1 if action == "+" else -1
        self.current = min(max(self.current + step, 0), LAST)
        if self.won:
            return 1.0, True
        # At the ends of the line the number may stay where it is, which is not nearer either.
        is_nearer = abs(self._target - self.current) < previous_distance
        return (0.0 if is_nearer else -1.0), False

    def state(self) -> str:
        return f"target {self._target} current {self.current}"

    def text(self, *, picture: bool) -> str:
        return "" if picture else f"Target: {self._target}\nCurrent: {self.current}"

    def picture(self) -> np.ndarray:
        return draw_numberline_game(self._target, self.current)

    def actions(self) -> tuple[str, ...]:
        return ACTIONS

    def remaining(self) -> int | None:
        return abs(self._target - self.current)


def make(
    *,
    observation: str = "picture",
    max_steps: int = 10,
    regret: bool = False,
) -> GameEnv:
    """Builds the environment; entry.py explains the options.

    Raises InputError for an unusable option.
    """

    def start_game(task: Task) -> NumberLineGame:
        start, target = task.id.rpartition("/")[2].split("-")
        return NumberLineGame(int(start), int(target))

    return GameEnv(
        IDS,
        start_game,
        GOAL,
        observation=observation,
        max_steps=max_steps,
        regret=regret,
    )


def choose_best(state: str) -> str:
    """The move towards the target."""
    _, target, _, current = state.split()
    return "+" if int(target) > int(current) else "-"


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """A demonstrator that moves towards the target."""
    return GameExpert(choose_best, seed, random_fraction)
