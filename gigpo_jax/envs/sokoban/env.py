"""Sokoban as an environment: `registry.make("sokoban")`, with nothing downloaded."""

import functools

import numpy as np

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.games import GameEnv, GameExpert, draw_for_split, make_task_ids
from gigpo_jax.envs.sokoban.data.levels import draw_level
from gigpo_jax.envs.sokoban.engine.distances import find_distances, find_state, move_player
from gigpo_jax.envs.sokoban.engine.room import ACTIONS, Room, remove_pieces
from gigpo_jax.envs.sokoban.picture import draw_room

LETTERS = "#_O√XPS"  # the codes 0 to 6 as text
GOAL = "push every box onto a target"
DEPTH = 30  # largest number of moves in the backward play that makes a room
# The published text: a letter between spaces, and a tab after them.
_CELL_TEXTS = [f" {letter} \t" for letter in LETTERS]


def format_cells(cells: bytes, width: int) -> str:
    """A room as lines of letters."""
    letters = "".join([LETTERS[code] for code in cells])
    return "\n".join([letters[start : start + width] for start in range(0, len(letters), width)])


def parse_cells(state: str) -> tuple[bytes, int]:
    """Lines of letters -> cells and width of the room."""
    rows = state.split("\n")
    return bytes(LETTERS.index(letter) for letter in "".join(rows)), len(rows[0])


class SokobanGame:
    """One episode; a `games.SmallGame`."""

    def __init__(self, cells: bytes, width: int, max_steps: int) -> None:
        grid = np.frombuffer(cells, np.uint8).reshape(-1, width)
        fixed = np.frombuffer(remove_pieces(cells), np.uint8).reshape(-1, width)
        self._room = Room(grid, fixed, max_steps)
        self.content = self.state()

    @property
    def won(self) -> bool:
        return self._room.won

    def act(self, action: str) -> tuple[float, bool]:
        # An unknown action is a step on the spot, with its cost.
        return self._room.move(ACTIONS.index(action) if action in ACTIONS else 0)

    def state(self) -> str:
        return format_cells(self._room.cells, self._room.width)

    def text(self, *, picture: bool) -> str:
        if picture:
            return ""
        texts = [_CELL_TEXTS[code] for code in self._room.cells]
        width = self._room.width
        rows = [texts[start : start + width] for start in range(0, len(texts), width)]
        return "\n".join(["".join(row) for row in rows])

    def picture(self) -> np.ndarray:
        return draw_room(self._room.grid)

    def actions(self) -> tuple[str, ...]:
        # "still" is accepted but never helps.
        return ACTIONS[1:]

    def remaining(self) -> int | None:
        cells = self._room.cells
        return find_distances(cells, self._room.width).get(find_state(cells))


def make(
    *,
    observation: str = "picture",
    size: int = 6,
    boxes: int = 1,
    max_steps: int = 15,
    regret: bool = False,
) -> GameEnv:
    """Builds the environment; entry.py explains the options.

    Raises InputError for an unusable option.
    """
    check_whole("size", size, 5, 10)
    check_whole("boxes", boxes, 1, 3)

    def start_game(task: Task) -> SokobanGame:
        return SokobanGame(_draw_level(task, size, boxes), size, max_steps)

    return GameEnv(
        make_task_ids("sokoban"),
        start_game,
        GOAL,
        observation=observation,
        max_steps=max_steps,
        regret=regret,
    )


# The episodes of a group play the same level, many of them in one worker.
@functools.lru_cache(maxsize=64)
def _draw_level(task: Task, size: int, boxes: int) -> bytes:
    return draw_for_split(
        task,
        f"{size} {boxes} {DEPTH}",
        lambda rng: draw_level(rng, size=size, boxes=boxes, depth=DEPTH),
        lambda cells: format_cells(cells, size),
    )


def choose_best(state: str) -> str:
    """Chooses a shortest solution's first move; "up" if there is none."""
    cells, width = parse_cells(state)
    # One search for all states of a room: later positions find it in the cache.
    distances = find_distances(cells, width)
    current_state = find_state(cells)
    unsolvable = len(distances)  # larger than every distance
    offsets = {"up": -width, "down": width, "left": -1, "right": 1}
    lengths = {}
    for action, offset in offsets.items():
        next_state = move_player(cells, current_state, offset)
        lengths[action] = distances.get(next_state, unsolvable)
    # Of equal lengths the first in the order of `offsets`, so the expert is deterministic.
    return min(lengths, key=lengths.__getitem__)


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """A demonstrator that solves every room in the fewest moves."""
    return GameExpert(choose_best, seed, random_fraction)
