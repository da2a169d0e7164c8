"""A grid world whose values are known exactly: an environment, a policy for it, and the values by
recursion.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.prompts import Compact
from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.rollout.episode_settings import EpisodeSettings

SIDE = 4
STEPS = 8
REWARD = 10.0
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
ACTIONS = list(MOVES)
TOKENIZER = word_tokenizer(
    [" ".join([*ACTIONS, "cell goal first now", *map(str, range(SIDE * SIDE))])]
)
SETTINGS = EpisodeSettings(
    template=Compact(),
    parse=lambda text: parse_tagged(text, fallback_chars=30),
    max_steps=STEPS,
    prompt_tokens=64,
    history=0,
    show_admissible=False,
    sampling=SamplingParams(temperature=1.0, max_tokens=8, stop_strings=("</action>",)),
)


def move(cell: int, action: str) -> int:
    row, column = np.clip(np.add(divmod(cell, SIDE), MOVES.get(action, (0, 0))), 0, SIDE - 1)
    return int(row * SIDE + column)


def distance(cell: int, goal: int) -> int:
    """The fewest moves."""
    return int(np.abs(np.subtract(divmod(cell, SIDE), divmod(goal, SIDE))).sum())


class Grid:
    """From cell 0 to the goal that the task names. `anchor` "cell" is the state, "none" says
    nothing.
    """

    def __init__(self, anchor: str = "cell", slip: bool = False) -> None:
        self._anchor, self._slip = anchor, slip
        self._cell = self._goal = 0

    def tasks(self, split: str) -> Sequence[Task]:
        return [
            Task(f"{split}/{goal}", "far" if goal > 7 else "near", split, str(goal), f"cell {goal}")
            for goal in range(1, SIDE**2)
        ]

    def _observation(self) -> Observation:
        anchor = f"cell {self._cell}" if self._anchor == "cell" else ""
        return Observation(f"cell {self._cell}", anchor, tuple(ACTIONS), f"goal {self._goal}")

    def reset(self, task: Task) -> Observation:
        self._cell, self._goal = 0, int(task.data)
        return self._observation()

    def step(self, action: str) -> StepResult:
        before = distance(self._cell, self._goal)
        self._cell = move(self._cell, "up" if self._slip else action)
        regret = distance(self._cell, self._goal) - before + 1.0
        won = self._cell == self._goal
        return StepResult(
            self._observation(),
            REWARD * won,
            won,
            {"won": won, "score": float(won), "regret": regret},
        )

    def close(self) -> None:
        pass


def policy(goal: int, cell: int) -> np.ndarray:
    """Probabilities of `ACTIONS`: random ones, drawn to the goal."""
    logits = 0.5 * np.random.default_rng((goal, cell)).normal(size=len(ACTIONS))
    logits -= [distance(move(cell, action), goal) for action in ACTIONS]
    return np.exp(logits) / np.exp(logits).sum()


class PolicyEngine:
    """An engine that answers with the policy above; it reads goal and cell from the prompt."""

    async def generate(
        self, tokens: Sequence[int] | np.ndarray, params: SamplingParams
    ) -> Completion:
        words = TOKENIZER.decode(list(tokens)).split()
        goal = int(words[words.index("goal") + 1])
        cell = int(words[-1])
        action = np.random.default_rng(params.key).choice(ACTIONS, p=policy(goal, cell))
        ids = np.asarray(TOKENIZER.encode(f"<think></think><action>{action}</action>"), np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), "stop", 0)

    def end_session(self, session: tuple[int, int]) -> None:
        pass

    def update_weights(self, params: Any, version: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def value(goal: int, cell: int, left: int) -> float:
    """The expected reward from a cell with so many steps left."""
    table = np.zeros(SIDE**2)
    for _ in range(left):
        table = np.array([_backup(goal, at, table) for at in range(SIDE**2)])
    return float(table[cell])


def _backup(goal: int, cell: int, table: np.ndarray) -> float:
    after = [move(cell, action) for action in ACTIONS]
    return float(
        sum(
            p * (REWARD if a == goal else table[a])
            for p, a in zip(policy(goal, cell), after, strict=True)
        )
    )


def advantage(goal: int, cell: int, action: str, left: int) -> float:
    """The exact advantage of an action."""
    after = move(cell, action)
    q = REWARD if after == goal else value(goal, after, left - 1)
    return q - value(goal, cell, left)
