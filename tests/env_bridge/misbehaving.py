"""The example with one promise broken in each class; the env checker has to find every one."""

import dataclasses
import itertools
import os
import random
import re
import sys
import time
import types
from collections.abc import Sequence

import numpy as np

from gigpo_jax.env_bridge.types import IMAGE, Observation, StepResult, Task
from gigpo_jax.envs.example.env import TreasureEnv, TreasureExpert


class ShuffledTasks(TreasureEnv):
    def tasks(self, split: str) -> Sequence[Task]:
        tasks = list(super().tasks(split))
        random.shuffle(tasks)
        return tasks


class RepeatedIds(TreasureEnv):
    def tasks(self, split: str) -> Sequence[Task]:
        return [*super().tasks(split), *super().tasks(split)]


class NoTasks(TreasureEnv):
    def tasks(self, split: str) -> Sequence[Task]:
        return []


class RaisesOnBadActions(TreasureEnv):
    def step(self, action: str) -> StepResult:
        return super().step(action.encode("ascii").decode())


class RememberingTreasure(TreasureEnv):
    """What was open stays open after `reset`."""

    def reset(self, task: Task) -> Observation:
        opened = self._open_drawer
        super().reset(task)
        self._open_drawer = opened
        return self._observe("You stand before the drawers.")


class SharedDrawers(TreasureEnv):
    """All objects see the drawer that any of them opened last."""

    opened = 0

    def step(self, action: str) -> StepResult:
        self._open_drawer = SharedDrawers.opened
        result = super().step(action)
        SharedDrawers.opened = self._open_drawer
        return result

    def reset(self, task: Task) -> Observation:
        SharedDrawers.opened = 0
        return super().reset(task)


class HashedAnchors(TreasureEnv):
    """Python's own hash of text differs from one process to the next."""

    def _observe(self, text: str) -> Observation:
        return dataclasses.replace(super()._observe(text), anchor=str(hash(text)))


class SetOrder(TreasureEnv):
    def _observe(self, text: str) -> Observation:
        observation = super()._observe(text)
        return dataclasses.replace(observation, admissible=tuple(set(observation.admissible or ())))


class OtherPictures(TreasureEnv):
    """What is seen is drawn anew in each process."""

    noise = np.random.default_rng().integers(0, 256, (28, 28, 3), np.uint8)

    def _observe(self, text: str) -> Observation:
        return dataclasses.replace(super()._observe(text), text=IMAGE, images=(self.noise,))


class LosesPictures(TreasureEnv):
    """Only the first episode has a picture; the text is the same."""

    numbers = itertools.count()

    def reset(self, task: Task) -> Observation:
        images = (np.zeros((28, 28, 3), np.uint8),) if next(self.numbers) == 0 else ()
        return dataclasses.replace(super().reset(task), text=IMAGE, images=images)


class CountsEpisodes(TreasureEnv):
    numbers = itertools.count()

    def reset(self, task: Task) -> Observation:
        observation = super().reset(task)
        return dataclasses.replace(observation, text=f"Episode {next(self.numbers)}")


class NoScore(TreasureEnv):
    def step(self, action: str) -> StepResult:
        return dataclasses.replace(super().step(action), info={"won": False})


class LostWithFullScore(TreasureEnv):
    def step(self, action: str) -> StepResult:
        return dataclasses.replace(super().step(action), info={"won": False, "score": 1.0})


class EmptyAnchor(TreasureEnv):
    def _observe(self, text: str) -> Observation:
        return dataclasses.replace(super()._observe(text), anchor="")


class RepeatedActions(TreasureEnv):
    def _observe(self, text: str) -> Observation:
        return dataclasses.replace(super()._observe(text), admissible=("look", "look"))


class ChangingTask(TreasureEnv):
    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return dataclasses.replace(
            result, observation=dataclasses.replace(result.observation, task=action)
        )


class LeavesFiles(TreasureEnv):
    def reset(self, task: Task) -> Observation:
        os.open(os.devnull, os.O_RDONLY)
        return super().reset(task)


class ImportsJax(TreasureEnv):
    def reset(self, task: Task) -> Observation:
        sys.modules.setdefault("jax", types.ModuleType("jax"))
        return super().reset(task)


class Slow(TreasureEnv):
    def step(self, action: str) -> StepResult:
        time.sleep(0.3)
        return super().step(action)


class Exits(TreasureEnv):
    def step(self, action: str) -> StepResult:
        if action == "..":
            raise SystemExit(0)
        return super().step(action)


class EndsItsProcess(TreasureEnv):
    def step(self, action: str) -> StepResult:
        if action == "..":
            os._exit(0)
        return super().step(action)


class Hangs(TreasureEnv):
    def step(self, action: str) -> StepResult:
        if action == "None":
            time.sleep(600)
        return super().step(action)


class HangsInC(TreasureEnv):
    """A regular expression that backtracks for years and does not let go of the interpreter."""

    def step(self, action: str) -> StepResult:
        re.match(r"(a|a)*c", "a" * 60)
        return super().step(action)


class TasksRaise(TreasureEnv):
    def tasks(self, split: str) -> Sequence[Task]:
        raise KeyError(split)


class CannotBeBuilt(TreasureEnv):
    def __init__(self) -> None:
        raise ValueError("no drawers\nat all")


class LostExpert(TreasureExpert):
    def act(self, observation: Observation) -> str:
        raise KeyError("north")
