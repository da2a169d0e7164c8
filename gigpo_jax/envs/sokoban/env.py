"""Sokoban as an environment: `registry.make("sokoban")`, with nothing downloaded."""

import functools

import numpy as np

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.games import GameEnv, GameExpert, draw, numbered
from gigpo_jax.envs.sokoban.data.levels import draw_level
from gigpo_jax.envs.sokoban.engine.distances import distances, moved, state_of
from gigpo_jax.envs.sokoban.engine.room import ACTIONS, Room
from gigpo_jax.envs.sokoban.picture import room_picture

LETTERS = "#_O√XPS"  # the codes 0 to 6 as text
GOAL = "push every box onto a target"
_WORDS = [f" {letter} \t" for letter in LETTERS]


def letters(cells: bytes, width: int) -> str:
    """A room as lines of letters."""
    shown = "".join([LETTERS[code] for code in cells])
    return "\n".join([shown[start : start + width] for start in range(0, len(shown), width)])


def cells_of(state: str) -> tuple[bytes, int]:
    """Lines of letters -> cells and width of the room."""
    rows = state.split("\n")
    return bytes(LETTERS.index(letter) for letter in "".join(rows)), len(rows[0])


class SokobanGame:
    """One episode; a `games.Game`."""

    def __init__(self, cells: bytes, width: int, max_steps: int) -> None:
        grid = np.frombuffer(cells, np.uint8).reshape(-1, width)
        fixed = np.array((0, 1, 2, 2, 1, 1, 2), np.uint8)[grid]
        self._room = Room(grid, fixed, max_steps)
        self.content = self.state()

    @property
    def won(self) -> bool:
        return self._room.won

    def act(self, action: str) -> tuple[float, bool]:
        return self._room.move(ACTIONS.index(action) if action in ACTIONS else 0)

    def state(self) -> str:
        return letters(self._room.cells, self._room.width)

    def text(self, *, picture: bool) -> str:
        """Each cell is a letter between spaces and a tab after them, as the published text has it."""
        if picture:
            return ""
        words, width = [_WORDS[code] for code in self._room.cells], self._room.width
        return "\n".join(["".join(words[start : start + width]) for start in range(0, len(words), width)])

    def picture(self) -> np.ndarray:
        return room_picture(self._room.grid)

    def actions(self) -> tuple[str, ...]:
        return ACTIONS[1:]

    def remaining(self) -> int | None:
        return distances(self._room.cells, self._room.width).get(state_of(self._room.cells))


def make(
    *,
    observation: str = "picture",
    size: int = 6,
    boxes: int = 1,
    depth: int = 30,
    max_steps: int = 15,
    regret: bool = False,
) -> GameEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options. InputError for one that cannot be used."""
    check_whole("size", size, 5, 10)
    check_whole("boxes", boxes, 1, 3)
    check_whole("depth", depth, 2 * boxes, 100)  # less leaves boxes on their targets

    def start(task: Task) -> SokobanGame:
        return SokobanGame(_level(task, size, boxes, depth), size, max_steps)

    return GameEnv(numbered("sokoban"), start, GOAL, observation=observation, max_steps=max_steps, regret=regret)


@functools.lru_cache(maxsize=64)  # the episodes of a group play the same level, many of them in one worker
def _level(task: Task, size: int, boxes: int, depth: int) -> bytes:
    return draw(
        task,
        f"{size} {boxes} {depth}",
        lambda rng: draw_level(rng, size=size, boxes=boxes, depth=depth),
        lambda cells: letters(cells, size),
    )


def best_action(state: str) -> str:
    """The first move of a shortest solution; "up" if there is none."""
    cells, width = cells_of(state)
    known, here = distances(cells, width), state_of(cells)
    moves = dict(zip(ACTIONS[1:], (-width, width, -1, 1)))
    return min(moves, key=lambda name: known.get(moved(cells, here, moves[name]), len(known)))


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """Solves every room in the fewest moves; `registry.ENVIRONMENTS` explains its options."""
    return GameExpert(best_action, seed, random_fraction)
