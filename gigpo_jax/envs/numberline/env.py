"""NumberLine as an environment: `registry.make("numberline")`. A number from 0 to 5 moves to a target."""

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.cards.picture import numberline_picture
from gigpo_jax.envs.cards.prompt import Rules
from gigpo_jax.envs.games import GameEnv, GameExpert

ACTIONS = ("-", "+")
GOAL = "move the number to the target"
LAST = 5  # the line begins at 0
# There are 30 tasks; the six whose numbers are 5 together are the split "test".
_TASKS = [(start, target) for start in range(LAST + 1) for target in range(LAST + 1) if start != target]
IDS = {
    split: [f"numberline/{split}/{a}-{b}" for a, b in _TASKS if (a + b == LAST) == (split == "test")]
    for split in ("train", "test")
}
full = Rules(
    'You play NumberLine. "+" adds one to the current number, "-" takes one away; it stays between 0 and 5. Bring the '
    "current number to the target number. Reward 1 at the target, -1 for a move that does not bring it nearer.",
    ACTIONS,
    (("current number", "the number"), ("target number", "the number"), ("thoughts", "what follows from them")),
)


class NumberLineGame:
    """One episode; a `games.Game`.

    Attributes:
      current: the number now.
    """

    def __init__(self, start: int, target: int) -> None:
        self.current, self._target = start, target
        self.content = self.state()

    @property
    def won(self) -> bool:
        return self.current == self._target

    def act(self, action: str) -> tuple[float, bool]:
        if action not in ACTIONS:
            return 0.0, False
        before = abs(self._target - self.current)
        self.current = min(max(self.current + (1 if action == "+" else -1), 0), LAST)
        if self.won:
            return 1.0, True
        return (0.0 if abs(self._target - self.current) < before else -1.0), False

    def state(self) -> str:
        return f"target {self._target} current {self.current}"

    def text(self, *, picture: bool) -> str:
        return "" if picture else f"Target: {self._target}\nCurrent: {self.current}"

    def picture(self) -> np.ndarray:
        return numberline_picture(self._target, self.current)

    def actions(self) -> tuple[str, ...]:
        return ACTIONS

    def remaining(self) -> int | None:
        return abs(self._target - self.current)


def make(*, observation: str = "picture", max_steps: int = 10, regret: bool = False) -> GameEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options. InputError for one that cannot be used."""

    def start(task: Task) -> NumberLineGame:
        begin, target = task.id.rpartition("/")[2].split("-")
        return NumberLineGame(int(begin), int(target))

    return GameEnv(IDS, start, GOAL, observation=observation, max_steps=max_steps, regret=regret)


def best_action(state: str) -> str:
    """The move towards the target."""
    _, target, _, current = state.split()
    return "+" if int(target) > int(current) else "-"


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """Moves towards the target; `registry.ENVIRONMENTS` explains its options."""
    return GameExpert(best_action, seed, random_fraction)
