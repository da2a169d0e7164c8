"""FrozenLake as text: `registry.make("frozenlake")`, with nothing downloaded.

Each task has its own lake. Slips follow from the task and the number of the step, so that episodes
replay exactly: two episodes of a task slip alike in the same step, whatever their actions. Over
tasks the probabilities are as in Gymnasium.
"""

import functools
import random

import numpy as np

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs.frozenlake.lake import (
    ACTIONS,
    SLIPS,
    Lake,
    draw_lake,
    find_action_values,
    find_letter,
    move,
)
from gigpo_jax.envs.frozenlake.prompt import AGENT, AGENT_AT_GOAL, AGENT_IN_HOLE, GOAL, HOLE, ICE
from gigpo_jax.envs.games import GameEnv, GameExpert, draw_for_split, make_task_ids

TASK = "reach the goal"
_LETTERS = {"S": ICE, "F": ICE, "H": HOLE, "G": GOAL}
_AGENTS = {"S": AGENT, "F": AGENT, "H": AGENT_IN_HOLE, "G": AGENT_AT_GOAL}
EXPERT_GAMMA = 0.99  # below 1: of two ways the shorter one is better


class FrozenLakeGame:
    """One episode; a `games.SmallGame`."""

    def __init__(self, lake: Lake, slips: list[int]) -> None:
        """Starts a game.

        Args:
          lake: Lines of letters, as in `lake`.
          slips: Slip of each step, one of `SLIPS`.
        """
        self._lake = lake
        self._slips = slips
        self._cell = 0
        self._steps = 0
        self.content = "\n".join(lake)  # not the slips: a panel is for slippery ice too

    @property
    def won(self) -> bool:
        return find_letter(self._lake, self._cell) == "G"

    def act(self, action: str) -> tuple[float, bool]:
        """Moves; a text that is no action takes a step too, but only waits."""
        if action in ACTIONS:
            number = ACTIONS.index(action) + self._slips[self._steps]
            self._cell = move(self._lake, self._cell, number)
        # A step without a move uses up its slip, too: slips belong to the number of the step.
        self._steps += 1
        return float(self.won), find_letter(self._lake, self._cell) in "HG"

    def state(self) -> str:
        letters = [_LETTERS[letter] for letter in "".join(self._lake)]
        letters[self._cell] = _AGENTS[find_letter(self._lake, self._cell)]
        width = len(self._lake[0])
        return "\n".join(
            "".join(letters[start : start + width]) for start in range(0, len(letters), width)
        )

    def text(self, *, picture: bool) -> str:
        # Letters between spaces: a token each for a word tokenizer.
        return "\n".join(" ".join(row) for row in self.state().split("\n"))

    def picture(self) -> np.ndarray:
        raise EnvError("FrozenLake is text alone")

    def actions(self) -> tuple[str, ...]:
        return ACTIONS

    def remaining(self) -> int | None:
        """As `games.SmallGame`: the slips to come are known here."""
        cells = {self._cell}
        # The cells that can be reached, step by step. The last slip is not used: its turn only
        # looks whether the goal is among them.
        for count, slip in enumerate([*self._slips[self._steps :], 0]):
            if any(find_letter(self._lake, cell) == "G" for cell in cells):
                return count
            open_cells = {cell for cell in cells if find_letter(self._lake, cell) != "H"}
            cells = {
                move(self._lake, cell, number + slip)
                for cell in open_cells
                for number in range(len(ACTIONS))
            }
        return None


def make(
    *,
    size: int = 4,
    slippery: bool = False,
    max_steps: int = 15,
    regret: bool = False,
) -> GameEnv:
    """Builds the environment; entry.py explains the options.

    Raises InputError for an unusable option.
    """
    check_whole("size", size, 3, 8)

    def start_game(task: Task) -> FrozenLakeGame:
        slips = [0] * max_steps
        if slippery:
            # A generator of its own: the same lake is drawn with and without slips.
            slips = random.Random(f"{task.id} slips").choices(SLIPS, k=max_steps)
        return FrozenLakeGame(_draw_lake(task, size), slips)

    return GameEnv(
        make_task_ids("frozenlake"),
        start_game,
        TASK,
        observation="text",
        max_steps=max_steps,
        regret=regret,
    )


# The episodes of a group play the same lake, many of them in one worker.
@functools.lru_cache(maxsize=64)
def _draw_lake(task: Task, size: int) -> tuple[str, ...]:
    return draw_for_split(task, str(size), lambda rng: draw_lake(rng, size), "\n".join)


# All positions in a lake share its values.
_find_cached_values = functools.lru_cache(maxsize=256)(find_action_values)


def read_lake(state: str) -> tuple[str, ...]:
    """The lake of an anchor state as lines of letters, where the start counts as ice."""
    return tuple(row.translate(_LAKE_LETTERS) for row in state.split("\n"))


def choose_best(state: str) -> str:
    """The first of the actions with the largest value."""
    cell = next(n for n, letter in enumerate(state.replace("\n", "")) if letter in _AGENTS.values())
    lake = read_lake(state)
    values = _find_cached_values(lake, is_slippery=False, gamma=EXPERT_GAMMA)[cell]
    # Rounded: actions of equal value differ in the last digits.
    return ACTIONS[int(np.argmax(np.round(values, 9)))]


# The agent stands on ice while the game goes on.
_LAKE_LETTERS = str.maketrans(
    {ICE: "F", HOLE: "H", GOAL: "G", AGENT: "F", AGENT_IN_HOLE: "H", AGENT_AT_GOAL: "G"}
)


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """A demonstrator that plays the action with the largest value on ice that is not slippery."""
    return GameExpert(choose_best, seed, random_fraction)
