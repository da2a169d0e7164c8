"""The maze: walk from a square to the exit, seeing only which ways are open."""

import hashlib
import random
from collections import deque
from collections.abc import Sequence
from functools import partial

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.option_checks import check_fractions
from gigpo_jax.env_bridge.prompts import Compact
from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.envs.entry_types import Environment, Option

Square = tuple[int, int]  # row and column, from 0 in the north-west
DIRECTIONS = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
SPLITS = ("train", "test")


class Maze:
    """Squares with walls between some of them; one way leads from each square to each other one.

    Actions: `go north`, `go east`, `go south`, `go west`. Reward 10 at the exit.
    """

    def __init__(self, *, size: int = 4, games: int = 512) -> None:
        """Every split has `games` mazes of `size` x `size` squares."""
        check_whole("size", size, 2, 20)
        check_whole("games", games, 1)
        self._size = size
        self._games = games
        self._passages: set[tuple[Square, Square]] = set()
        self._position: Square = (0, 0)
        self._exit: Square = (0, 0)

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split. A type says whether the way is long."""
        if split not in SPLITS:
            raise InputError(
                f"the maze has the splits {', '.join(SPLITS)}",
                key="config.env.split",
                value=repr(split),
            )
        tasks = []
        for number in range(self._games):
            task_id = f"{split}/{number:04d}"
            self._build(task_id)
            task_type = "near" if self._measure_way() <= self._size else "far"
            tasks.append(Task(task_id, task_type, split))
        return tasks

    def digest(self, task: Task) -> str:
        """A hash of the task's content: a panel notices when mazes become others."""
        self._build(task.id)
        content = (sorted(self._passages), self._position, self._exit)
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def reset(self, task: Task) -> Observation:
        self._build(task.id)
        return self._observe()

    def step(self, action: str) -> StepResult:
        if action in self._list_actions():
            self._position = _move(self._position, action.removeprefix("go "))
        won = self._position == self._exit
        return StepResult(self._observe(), 10.0 * won, won, {"won": won, "score": float(won)})

    def close(self) -> None:
        pass

    def _build(self, task_id: str) -> None:
        """Builds a maze by a random walk that turns back where all neighbours are reached."""
        # Everything follows from the task's id: each process finds the same maze.
        rng = random.Random(f"{task_id}:{self._size}")
        squares = [(row, column) for row in range(self._size) for column in range(self._size)]
        self._passages = set()
        reached = {squares[0]}
        trail = [squares[0]]
        while trail:
            square = trail[-1]
            neighbours = [_move(square, direction) for direction in DIRECTIONS]
            choices = [
                neighbour
                for neighbour in neighbours
                if neighbour in squares and neighbour not in reached
            ]
            if not choices:
                trail.pop()
                continue
            neighbour = rng.choice(choices)
            self._passages |= {(square, neighbour), (neighbour, square)}
            reached.add(neighbour)
            trail.append(neighbour)
        self._position, self._exit = rng.sample(squares, 2)

    def _measure_way(self) -> int:
        """Steps from the start to the exit."""
        distances = {self._position: 0}
        queue = deque([self._position])
        while self._exit not in distances:
            square = queue.popleft()
            for direction in DIRECTIONS:
                neighbour = _move(square, direction)
                if (square, neighbour) in self._passages and neighbour not in distances:
                    distances[neighbour] = distances[square] + 1
                    queue.append(neighbour)
        return distances[self._exit]

    def _list_actions(self) -> tuple[str, ...]:
        actions = []
        for direction in DIRECTIONS:
            if (self._position, _move(self._position, direction)) in self._passages:
                actions.append(f"go {direction}")
        return tuple(actions)

    def _observe(self) -> Observation:
        text = _format_square(self._position)
        task = _format_square(self._exit)
        # The position says all of the state, so it is the anchor.
        return Observation(text, anchor=text, admissible=self._list_actions(), task=task)


class Walker:
    """Walks into new squares, the nearest to the exit first, else back."""

    def __init__(self, seed: int, *, random_fraction: float = 0.0) -> None:
        check_fractions(random_fraction=random_fraction)
        self._random = random.Random(seed)
        self._random_fraction = random_fraction
        self._trail: list[str] = []  # earlier observations, for walking back
        self._visited: set[str] = set()

    def act(self, observation: Observation) -> str:
        actions = observation.admissible or ()
        self._visited.add(observation.text)
        position = _parse_square(observation.text)
        if self._random.random() < self._random_fraction:
            return self._random.choice(actions)
        destinations = {action: _move(position, action.removeprefix("go ")) for action in actions}
        new_actions = [
            action
            for action, square in destinations.items()
            if _format_square(square) not in self._visited
        ]
        if new_actions:
            self._trail.append(observation.text)
            goal = _parse_square(observation.task)
            return min(new_actions, key=lambda action: _distance(destinations[action], goal))
        while self._trail:
            previous = self._trail.pop()
            for action, square in destinations.items():
                if _format_square(square) == previous:
                    return action
        return self._random.choice(actions)


def _move(square: Square, direction: str) -> Square:
    down, right = DIRECTIONS[direction]
    return square[0] + down, square[1] + right


def _parse_square(text: str) -> Square:
    words = text.split()
    return int(words[1]), int(words[3])


def _format_square(square: Square) -> str:
    return f"row {square[0]} column {square[1]}"


def _distance(a: Square, b: Square) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


MAZE = Environment(
    build="maze.env:Maze",
    styles={
        "full": Instruct("You are in a maze and look for the exit. Rows count southwards."),
        "compact": Compact(),
    },
    parse=partial(parse_tagged, fallback_chars=30),
    expert="maze.env:Walker",
    max_steps=20,
    history=2,
    invalid_penalty=0.1,
    options={
        "size": Option(int, 4, "rows and columns, 2 to 20"),
        "games": Option(int, 512, "tasks of a split"),
    },
    expert_options={
        "random_fraction": Option(float, 0.0, "probability of a random action at a step")
    },
)
