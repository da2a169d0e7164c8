"""A policy in place of an engine, and settings of episodes of the environment `example`."""

import asyncio
import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from gigpo_jax.envs import registry
from gigpo_jax.models.tokenizer import word_tokenizer
from gigpo_jax.rollout.rollout import EpisodeSettings
from gigpo_jax.sampling.base import Completion, SamplingParams

EXAMPLE = registry.ENVIRONMENTS["example"]
TOKENIZER = word_tokenizer(
    ["find the coin pearl ring did now can open close take drawer you stand before drawers in it see nothing a happens"]
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
    """A policy that takes 3 ms at most: what it answers is a function of the prompt and the key alone.

    It opens random drawers and takes what it sees; one response in ten is malformed.
    """

    def __init__(self, fail: float = 0.0) -> None:
        self.fail = fail
        self.requests: list[tuple[tuple[int, ...], SamplingParams]] = []
        self._order = random.Random(id(self))

    async def generate(self, tokens: Sequence[int] | np.ndarray, params: SamplingParams) -> Completion:
        self.requests.append((tuple(tokens), params))
        await asyncio.sleep(self._order.random() * 0.003)
        seed = hashlib.sha256(repr((list(tokens), params.key, params.temperature)).encode()).digest()
        draw = random.Random(seed)
        if draw.random() < self.fail:
            raise ValueError("this one is too much\nfor me")
        text = TOKENIZER.decode(list(tokens))
        take = "take " + text.split()[2]
        action = take if take in text else f"{draw.choice(['open', 'close'])} drawer {draw.randint(1, 4)}"
        response = f"<think></think><action>{action}</action>" if draw.random() < 0.9 else f"<think> {action}"
        ids = np.asarray(TOKENIZER.encode(response), np.int32)
        logprobs = np.asarray([draw.uniform(-3, 0) for _ in ids], np.float32)
        return Completion(ids, logprobs, "stop", 7)

    def update_weights(self, params: Any, version: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass
