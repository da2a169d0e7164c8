"""The maze: walk from a square to the exit, seeing only which ways are open."""

import hashlib
import random
from collections import deque
from collections.abc import Sequence
from functools import partial

from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.base import check_fractions, check_whole
from gigpo_jax.env_bridge.prompts import Compact, Instruct
from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.envs.registry import Environment, Option
from gigpo_jax.errors import InputError

Square = tuple[int, int]  # row and column, from 0 in the north-west
WAYS = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
SPLITS = ("train", "test")


class Maze:
    """Squares with walls between some of them; one way leads from each square to each other one.

    Actions: `go north`, `go east`, `go south`, `go west`. Reward 10 at the exit.
    """

    def __init__(self, *, size: int = 4, games: int = 512) -> None:
        """Every split has `games` mazes of `size` x `size` squares."""
        check_whole("size", size, 2, 20)
        check_whole("games", games, 1)
        self._size, self._games = size, games
        self._open: set[tuple[Square, Square]] = set()
        self._at = self._exit = (0, 0)

    def tasks(self, split: str) -> Sequence[Task]:
        """The type of a task is how long its way is: at most `size` steps, or more."""
        if split not in SPLITS:
            raise InputError(f"config.env.split={split!r}: the maze has the splits {', '.join(SPLITS)}")
        return [self._task(f"{split}/{number:04d}", split) for number in range(self._games)]

    def _task(self, name: str, split: str) -> Task:
        self._build(name)
        return Task(name, "near" if self._distance() <= self._size else "far", split)

    def digest(self, task: Task) -> str:
        """A hash of the task's content: a panel notices when mazes become others."""
        self._build(task.id)
        return hashlib.sha256(repr((sorted(self._open), self._at, self._exit)).encode()).hexdigest()

    def reset(self, task: Task) -> Observation:
        self._build(task.id)
        return self._observe()

    def step(self, action: str) -> StepResult:
        if action in self._admissible():
            self._at = _next(self._at, action.removeprefix("go "))
        won = self._at == self._exit
        return StepResult(self._observe(), 10.0 * won, won, {"won": won, "score": float(won)})

    def close(self) -> None:
        pass

    def _build(self, name: str) -> None:
        """Everything follows from the task's id: each process finds the same maze."""
        draw = random.Random(f"{name}:{self._size}")
        squares = [(row, column) for row in range(self._size) for column in range(self._size)]
        self._open, reached, trail = set(), {squares[0]}, [squares[0]]
        while trail:  # a random walk that turns back where all neighbours are reached
            ways = [to for way in WAYS if (to := _next(trail[-1], way)) in squares and to not in reached]
            if not ways:
                trail.pop()
                continue
            to = draw.choice(ways)
            self._open |= {(trail[-1], to), (to, trail[-1])}
            reached.add(to)
            trail.append(to)
        self._at, self._exit = draw.sample(squares, 2)

    def _distance(self) -> int:
        steps, waiting = {self._at: 0}, deque([self._at])
        while self._exit not in steps:
            here = waiting.popleft()
            for to in (_next(here, way) for way in WAYS):
                if (here, to) in self._open and to not in steps:
                    steps[to] = steps[here] + 1
                    waiting.append(to)
        return steps[self._exit]

    def _admissible(self) -> tuple[str, ...]:
        return tuple(f"go {way}" for way in WAYS if (self._at, _next(self._at, way)) in self._open)

    def _observe(self) -> Observation:
        text, task = f"row {self._at[0]} column {self._at[1]}", f"row {self._exit[0]} column {self._exit[1]}"
        # Where the agent stands says all of the state, so it is the anchor.
        return Observation(text, anchor=text, admissible=self._admissible(), task=task)


class Walker:
    """Walks towards the exit where that is open, into squares that are new if there are any, else back."""

    def __init__(self, seed: int, *, random_fraction: float = 0.0) -> None:
        check_fractions(random_fraction=random_fraction)
        self._random, self._fraction = random.Random(seed), random_fraction
        self._trail: list[str] = []  # observations on the way here, for walking back
        self._seen: set[str] = set()

    def act(self, observation: Observation) -> str:
        actions, here = observation.admissible or (), observation.text
        self._seen.add(here)
        goal, at = _read(observation.task), _read(here)
        new = [action for action in actions if _text(_next(at, action[3:])) not in self._seen]
        if self._random.random() < self._fraction:
            return self._random.choice(actions)
        if new:
            self._trail.append(here)
            return min(new, key=lambda action: _far(_next(at, action[3:]), goal))
        while self._trail:
            back = self._trail.pop()
            for action in actions:
                if _text(_next(at, action[3:])) == back:
                    return action
        return self._random.choice(actions)


def _next(at: Square, way: str) -> Square:
    return at[0] + WAYS[way][0], at[1] + WAYS[way][1]


def _read(text: str) -> Square:
    return int(text.split()[1]), int(text.split()[3])


def _text(square: Square) -> str:
    return f"row {square[0]} column {square[1]}"


def _far(one: Square, other: Square) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


MAZE = Environment(
    build="maze.env:Maze",
    styles={"full": Instruct("You are in a maze and look for the exit. Rows count southwards."), "compact": Compact()},
    parse=partial(parse_tagged, fallback_chars=30),
    expert="maze.env:Walker",
    max_steps=20,
    history=2,
    invalid_penalty=0.1,
    options={
        "size": Option(int, 4, "rows and columns, 2 to 20"),
        "games": Option(int, 512, "tasks of a split"),
    },
    expert_options={"random_fraction": Option(float, 0.0, "probability of a random action at a step")},
)
