"""Treasure in drawers: a small complete environment, explained in docs/environments.md."""

import random
from collections.abc import Sequence

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Observation, StepResult, Task

TREASURES = ("coin", "pearl", "ring")


class TreasureEnv:
    """Game of drawers, one of which holds the treasure, and of which one can be open at a time.

    Actions: `open drawer 2`, `close drawer 2`, `take ring`. Reward 10 for taking the task's
    treasure.
    """

    def __init__(self, *, drawers: int = 4, games: int = 64, anchor: str = "text") -> None:
        """Every split has `games` tasks, each with `drawers` drawers."""
        if not 1 <= drawers <= 99:
            raise InputError("must be a number from 1 to 99", key="drawers", value=str(drawers))
        if games < 1:
            raise InputError("must be a number of at least 1", key="games", value=str(games))
        self._drawers = drawers
        self._games = games
        self._anchor = anchor
        self._treasure = ""
        self._treasure_drawer = 0
        self._open_drawer = 0  # 0: all are closed
        self._won = False

    def tasks(self, split: str) -> Sequence[Task]:
        """Lists a split's tasks, typed by their treasure."""
        if split not in ("train", "test"):
            raise InputError("must be train or test", key="config.env.split", value=repr(split))
        tasks = []
        for number in range(self._games):
            # In turn: every type has as many tasks as the others, or one less.
            treasure = TREASURES[number % len(TREASURES)]
            tasks.append(Task(f"{split}/{number:04d}", f"find_{treasure}", split))
        return tasks

    def reset(self, task: Task) -> Observation:
        # The place follows from the id alone: it is the same in every process.
        rng = random.Random(f"{task.id}:{self._drawers}")
        self._treasure = task.type.removeprefix("find_")
        self._treasure_drawer = rng.randint(1, self._drawers)
        self._open_drawer = 0
        self._won = False
        return self._observe(f"You stand before {self._drawers} drawers.")

    def step(self, action: str) -> StepResult:
        text = self._act(action.strip())
        reward = 10.0 if self._won else 0.0
        info = {"won": self._won, "score": float(self._won)}
        return StepResult(self._observe(text), reward, self._won, info)

    def close(self) -> None:
        pass

    def _act(self, action: str) -> str:
        """Acts and returns the text of the observation."""
        if action not in self._list_actions():
            return "Nothing happens."
        if action.startswith("open"):
            self._open_drawer = int(action.split()[-1])
            has_treasure = self._open_drawer == self._treasure_drawer
            content = f"a {self._treasure}" if has_treasure else "nothing"
            return f"You open the drawer {self._open_drawer}. In it, you see {content}."
        if action.startswith("close"):
            text = f"You close the drawer {self._open_drawer}."
            self._open_drawer = 0
            return text
        self._won = True
        return f"You take the {self._treasure}."

    def _list_actions(self) -> tuple[str, ...]:
        if self._won:
            return ()
        if not self._open_drawer:
            return tuple(f"open drawer {number}" for number in range(1, self._drawers + 1))
        close = f"close drawer {self._open_drawer}"
        if self._open_drawer == self._treasure_drawer:
            return close, f"take {self._treasure}"
        return (close,)

    def _observe(self, text: str) -> Observation:
        # Only "Nothing happens." does not tell the open drawer.
        anchor = text if self._anchor == "text" else f"{self._won}, drawer {self._open_drawer}"
        return Observation(text, anchor, self._list_actions(), f"find the {self._treasure}")


class TreasureExpert:
    """Opens drawers at random until there is something to take.

    Attributes:
      thought: Reason for the last action, for the examples in prompts (docs/agents.md).
      subgoal: Subgoal of the last action (docs/plans.md).
    """

    def __init__(self, seed: int, *, random_fraction: float = 0.0) -> None:
        self._random_fraction = random_fraction
        self._random = random.Random(seed)
        self._opened: set[str] = set()
        self.thought = ""
        self.subgoal = ""

    def act(self, observation: Observation) -> str:
        actions = observation.admissible or ()
        last = actions[-1]
        self.subgoal = last if last.startswith("take") else observation.task
        if self._random_fraction and self._random.random() < self._random_fraction:
            self.thought = ""
            return self._random.choice(actions)
        if last.startswith("take"):
            self.thought = "This is what I look for."
            return last
        if last.startswith("close"):
            self.thought = "It is not in this drawer."
            return last
        action = self._random.choice([name for name in actions if name not in self._opened])
        self._opened.add(action)
        self.thought = "I have not looked into this drawer yet."
        return action
