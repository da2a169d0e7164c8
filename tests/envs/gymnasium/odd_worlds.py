"""Gymnasium environments as strangers write them; importing this module registers them."""

import itertools
import os
import time
from typing import Any

import gymnasium
from gymnasium import spaces

from gigpo_jax.envs.gymnasium.renderers import Renderer

EPISODES = itertools.count()  # the state of a process, which no seed resets


class Corridor(gymnasium.Env[int, int]):
    """Five cells with numbers from 3 for the actions; the goal is the last."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2, start=3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(0, 3))
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert action in (3, 4)
        self.cell = max(0, self.cell + (1 if action == 4 else -1))
        done = self.cell == 4
        return self.cell, float(done), done, False, {"is_success": done}


class Words(gymnasium.Env[str, str]):
    """A text environment: say the word."""

    observation_space = spaces.Text(100)
    action_space = spaces.Text(10)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word = str(self.np_random.choice(["Ada", "Bob"]))
        return f"Say {self.word}", {"choices": ["Ada", "Bob"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        done = action == self.word
        return f"You said {action}", float(done), done, False, {"choices": ["Ada", "Bob"]}


class HangsInStep(Words):
    def step(self, action: str) -> Any:
        time.sleep(1000)


class HangsInReset(Words):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(1000)


class HangsWhenMade(Words):
    def __init__(self) -> None:
        time.sleep(1000)


class Dies(Words):
    def step(self, action: str) -> Any:
        os._exit(3)


class OddReward(Words):
    def step(self, action: str) -> Any:
        return "hello", "many", False, False, {"choices": []}


class Raises(Words):
    def step(self, action: str) -> Any:
        raise OSError("the server\x1b[31m is\ngone")


class Huge(Words):
    def step(self, action: str) -> Any:
        return "x" * 3_000_000, 0.0, False, False, {"choices": []}


class Escapes(Words):
    def step(self, action: str) -> Any:
        return "\x1b[2J\x00 red \x1b[31m", 0.0, False, False, {"choices": ["\x1b[2J"]}


class OwnDice(Words):
    """The word does not follow from the seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return f"Episode {next(EPISODES)}", {"choices": []}


ENVIRONMENTS = (
    Corridor,
    Words,
    HangsInStep,
    HangsInReset,
    HangsWhenMade,
    Dies,
    OddReward,
    Raises,
    Huge,
    Escapes,
    OwnDice,
)
for environment in ENVIRONMENTS:
    gymnasium.register(f"strange/{environment.__name__}-v0", environment, max_episode_steps=20)


def show_cell(env: Any, observation: int) -> str:
    return f"cell {observation} of 5"


def show_number(env: Any, observation: int) -> int:
    return observation


CORRIDOR = Renderer(
    show_cell, ("back", "On"), lambda env: "reach cell 4", lambda env, observation: f"at {env.cell}"
)
