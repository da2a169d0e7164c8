"""Scores of a probe prompt, by which learner and server compare their weights."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from gigpo_jax.engines.jax.placement import parameter_mesh
from gigpo_jax.models import decoder

PROBE_TOKENS = 64  # largest number


def make_probe_scorer(config: decoder.DecoderConfig, params: decoder.Params, dtype: str) -> Any:
    """Makes a jitted function that scores a prompt.

    It is (params like `params`, tokens [P]) -> [P - 1] f32, their log-probabilities in nats. There
    is a program for each P.
    """

    def score(params: decoder.Params, tokens: jax.Array) -> jax.Array:
        # [P - 1, V]: the scores after every token but the last, for the token that follows it.
        logits = decoder.logits(config, params, tokens[None], dtype=jax.numpy.dtype(dtype))[0, :-1]
        logprobs = jax.nn.log_softmax(logits)
        return jax.numpy.take_along_axis(logprobs, tokens[1:, None], axis=1)[:, 0]

    mesh = parameter_mesh(params)
    # Replicated: every host compares the whole result with those of its own servers.
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return jax.jit(score, out_shardings=sharding)
