"""A random model of two layers over 60 characters, and what it should answer."""

import asyncio
import dataclasses
import random

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.engines.base import SamplingParams, request_key
from gigpo_jax.models import decoder, next_tokens
from gigpo_jax.models.expert_config import ExpertConfig

CONFIG = decoder.DecoderConfig(
    vocab_size=60,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
)
EXPERTS = dataclasses.replace(
    CONFIG, model_type="qwen3_moe", experts=ExpertConfig(count=4, per_token=2, width=24)
)
LIMIT_S = 120.0


class Letters:
    """Token i is one character; 59 is the whole of "</b>"."""

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ</> .,!"

    def encode(self, text: str) -> list[int]:
        return [59] if text == "</b>" else [self.letters.index(letter) for letter in text]

    def decode(self, ids) -> str:
        return "".join("</b>" if token == 59 else self.letters[token] for token in ids)


def weights(seed: int, scale: float = 8.0) -> decoder.Params:
    """Random parameters, larger than at the start of training so that responses are far from
    uniform.
    """
    params = decoder.init_params(CONFIG, jax.random.key(seed))
    return jax.tree.map(lambda leaf: leaf * scale if leaf.ndim > 1 else leaf, params)


def run(*coroutines):
    async def together():
        return await asyncio.wait_for(asyncio.gather(*coroutines), LIMIT_S)

    return asyncio.run(together())


async def outcome(coroutine):
    return (await asyncio.gather(coroutine, return_exceptions=True))[0]


def requests(count: int, seed: int = 0) -> list[tuple[list[int], SamplingParams]]:
    """Prompts and settings of all kinds."""
    rng = random.Random(seed)
    made = []
    for index in range(count):
        prompt = [rng.randrange(60) for _ in range(rng.randint(1, 40))]
        settings = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.0, 1.0]),
            top_p=rng.choice([1.0, 1.0, 0.9]),
            top_k=rng.choice([-1, -1, 10]),
            max_tokens=rng.randint(1, 20),
            stop_token_ids=rng.choice([(), (5, 6)]),
            key=request_key(seed, 0, 0, 0, index),
        )
        made.append((prompt, settings))
    return made


def full_logprobs(
    params: decoder.Params, prompt: list[int], response: np.ndarray, settings: SamplingParams
) -> np.ndarray:
    """Log-probabilities [T] of a response by one forward pass over all of it (no top-p, no
    top-k).
    """
    logprobs = full_distributions(params, prompt, response, settings)
    return logprobs[np.arange(len(response)), response]


def full_distributions(
    params: decoder.Params, prompt: list[int], response: np.ndarray, settings: SamplingParams
) -> np.ndarray:
    """Likewise the log-probabilities [T, V] of all tokens."""
    sequence = jnp.asarray([*prompt, *response.tolist()])[None]
    padded = jnp.pad(sequence, ((0, 0), (0, 64 - sequence.shape[1])))
    logits = np.asarray(FULL(params, padded))[0, len(prompt) - 1 :][: len(response)].astype(
        np.float64
    )
    logits /= settings.temperature or 1.0
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


FULL = jax.jit(lambda params, tokens: next_tokens.logits(CONFIG, params, tokens))
