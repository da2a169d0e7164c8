"""Treasure in drawers: a complete small environment to copy from (docs/environments.md explains it)."""

import random
from collections.abc import Sequence

from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.errors import InputError

TREASURES = ("coin", "pearl", "ring")


class TreasureEnv:
    """One of several drawers holds the treasure; one drawer can be open at a time.

    Actions: `open drawer 2`, `close drawer 2`, `take ring`. Reward 10 for taking the treasure of the task.
    """

    def __init__(self, *, drawers: int = 4, games: int = 64) -> None:
        """Every split has `games` tasks, each with `drawers` drawers."""
        if not 1 <= drawers <= 99:
            raise InputError(f"drawers={drawers}: use a number from 1 to 99")
        if games < 1:
            raise InputError(f"games={games}: use a number of at least 1")
        self._drawers, self._games = drawers, games
        self._task = Task("", "", "")
        self._treasure, self._place, self._open, self._won = "", 0, 0, False

    def tasks(self, split: str) -> Sequence[Task]:
        """A task is its number: where things lie follows from the id alone, so it is the same in every process."""
        if split not in ("train", "test"):
            raise InputError(f'config.env.split="{split}": this environment has the splits train and test')
        kinds = (TREASURES[number % len(TREASURES)] for number in range(self._games))
        return [Task(f"{split}/{number:04d}", f"find_{kind}", split) for number, kind in enumerate(kinds)]

    def reset(self, task: Task) -> Observation:
        self._task, self._treasure = task, task.type.removeprefix("find_")
        self._place = random.Random(f"{task.id}:{self._drawers}").randint(1, self._drawers)
        self._open, self._won = 0, False
        return self._observe(f"You stand before {self._drawers} drawers.")

    def step(self, action: str) -> StepResult:
        action = action.strip()
        if action not in self._admissible():
            text = "Nothing happens."
        elif action.startswith("open"):
            self._open = int(action.split()[-1])
            inside = f"a {self._treasure}" if self._open == self._place else "nothing"
            text = f"You open the drawer {self._open}. In it, you see {inside}."
        elif action.startswith("close"):
            text, self._open = f"You close the drawer {self._open}.", 0
        else:
            text, self._won = f"You take the {self._treasure}.", True
        info = {"won": self._won, "score": float(self._won)}
        return StepResult(self._observe(text), 10.0 if self._won else 0.0, self._won, info)

    def close(self) -> None:
        pass

    def _admissible(self) -> tuple[str, ...]:
        if self._won:
            return ()
        if not self._open:
            return tuple(f"open drawer {number}" for number in range(1, self._drawers + 1))
        take = (f"take {self._treasure}",) if self._open == self._place else ()
        return (f"close drawer {self._open}", *take)

    def _observe(self, text: str) -> Observation:
        return Observation(text, anchor=text, admissible=self._admissible(), task=f"find the {self._treasure}")


class TreasureExpert:
    """Opens one drawer after the other, in an order of its own, until it sees something to take."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seen: set[str] = set()
        self.thought = ""  # the reason for the last action, for the examples in prompts (docs/agents.md)

    def act(self, observation: Observation) -> str:
        actions = observation.admissible or ()
        best = [a for a in actions if a.startswith(("take", "close"))] or [a for a in actions if a not in self._seen]
        action = best[-1] if best[-1].startswith(("take", "close")) else self._random.choice(best)
        why = {"take": "This is what I look for.", "close": "It is not in this drawer."}
        self.thought = why.get(action.split()[0], "I have not looked into this drawer yet.")
        self._seen.add(action)
        return action
