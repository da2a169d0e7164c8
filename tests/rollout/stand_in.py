"""A policy in place of an engine, and rollouts of the environment `example`."""

import asyncio
import dataclasses
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.recorded_starts import RecordedStarts
from gigpo_jax.rollout.rollout import RolloutJob, rollout
from gigpo_jax.trajectory import Past, Trajectory, Turn

EXAMPLE = registry.ENVIRONMENTS["example"]
TOKENIZER = word_tokenizer(
    [
        "find the coin pearl ring did now can open close take drawer you stand before drawers in it see nothing a happens"
    ]
)
SETTINGS = EpisodeSettings(
    template=EXAMPLE.styles["compact"],
    parse=EXAMPLE.parse,
    max_steps=8,
    prompt_tokens=64,
    invalid_penalty=0.25,
    seed=3,
    sampling=SamplingParams(temperature=0.7, max_tokens=20, stop_strings=("</action>",)),
)


class StandIn:
    """A policy that takes 3 ms at most: what it answers is a function of the prompt and the key
    alone.

    It opens random drawers and takes what it sees; one response in ten is malformed.
    """

    def __init__(self, fail: float = 0.0) -> None:
        self.fail = fail
        self.requests: list[tuple[tuple[int, ...], SamplingParams]] = []
        self.ended_sessions: list[tuple[int, int]] = []
        self._order = random.Random(id(self))

    async def generate(
        self, tokens: Sequence[int] | np.ndarray, params: SamplingParams
    ) -> Completion:
        self.requests.append((tuple(tokens), params))
        await asyncio.sleep(self._order.random() * 0.003)
        seed = hashlib.sha256(
            repr((list(tokens), params.key, params.temperature)).encode()
        ).digest()
        draw = random.Random(seed)
        if draw.random() < self.fail:
            raise ValueError("this one is too much\nfor me")
        text = TOKENIZER.decode(list(tokens))
        take = "take " + text.split()[2]
        action = (
            take
            if take in text
            else f"{draw.choice(['open', 'close'])} drawer {draw.randint(1, 4)}"
        )
        response = (
            f"<think></think><action>{action}</action>"
            if draw.random() < 0.9
            else f"<think> {action}"
        )
        ids = np.asarray(TOKENIZER.encode(response), np.int32)
        logprobs = np.asarray([draw.uniform(-3, 0) for _ in ids], np.float32)
        return Completion(ids, logprobs, "stop", 7)

    def end_session(self, session: tuple[int, int]) -> None:
        self.ended_sessions.append(session)

    def update_weights(self, params: Any, version: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def play(
    pool: EnvPool,
    engine: Any = None,
    *,
    groups: int = 6,
    size: int = 4,
    settings: EpisodeSettings = SETTINGS,
    iteration: int = 5,
    on_attempt: Callable[[Trajectory], None] | None = None,
    tasks: Sequence[Task] | None = None,
    **options: Any,
) -> list[Trajectory]:
    runner = EpisodeRunner(engine or StandIn(), TOKENIZER, settings, on_attempt)
    tasks = tasks or pool.tasks("train")[:groups]
    return asyncio.run(
        rollout(
            RolloutJob(tasks, group_size=size, iteration=iteration, **options), {"": (runner, pool)}
        )
    )


def begin_with(*pasts: Past) -> RecordedStarts:
    """Starts of the groups from 0."""
    return RecordedStarts(dict(enumerate(pasts)))


def same(one: Any, other: Any) -> bool:
    """Equality to the bit of everything but times."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (Turn, Trajectory)):
        names = [field.name for field in dataclasses.fields(one) if not field.name.endswith("_s")]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)
