"""One episode in an environment that ends as the test says."""

import asyncio
import dataclasses
from typing import Any

import pytest

from gigpo_jax.engines.base import request_key
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_parts import EpisodeJob
from tests.rollout.stand_in import SETTINGS, TOKENIZER, StandIn


class Ending:
    """An environment whose episode is over after some actions, won or not, or goes on."""

    def __init__(self, last: int, won: bool) -> None:
        self._last = last
        self._won = won
        self._steps = 0

    async def reset(self, task: Task) -> Observation:
        return self._observe()

    async def step(self, action: str) -> StepResult:
        self._steps += 1
        is_last = self._steps == self._last
        won = self._won and is_last
        return StepResult(self._observe(), 1.0, is_last, {"won": won, "score": self._steps / 8})

    def _observe(self) -> Observation:
        return Observation(f"now {self._steps}", f"{self._steps}", ("open",), "find the coin")


@pytest.mark.parametrize(
    ("last", "won", "length", "truncated"),
    [
        (2, False, 2, False),
        (2, True, 2, False),
        (3, True, 3, False),
        (3, False, 3, True),
        (9, False, 3, True),
    ],
)
def test_only_an_episode_that_used_up_its_steps_is_truncated(
    last: int, won: bool, length: int, truncated: bool
) -> None:
    """One that is lost by the rules is over: nothing could have followed."""
    settings = dataclasses.replace(
        SETTINGS, max_steps=3, parse=lambda response: Response("open", True)
    )
    runner = EpisodeRunner(StandIn(), TOKENIZER, settings)
    job = EpisodeJob(
        Task("a", "", "train"), 0, 0, key=lambda member, step: request_key(0, 0, 0, member, step)
    )
    environment: Any = Ending(last, won)
    trajectory = asyncio.run(runner.play(job, environment))
    assert not trajectory.aborted, trajectory.reason
    assert (trajectory.length, trajectory.won, trajectory.truncated) == (length, won, truncated)
    assert (trajectory.score, trajectory.total_reward) == (length / 8, length)
