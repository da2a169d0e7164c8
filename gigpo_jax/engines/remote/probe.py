"""Scores of a probe prompt, by which learner and server compare their weights."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from gigpo_jax.engines.jax.placement import parameter_mesh
from gigpo_jax.models import decoder

PROBE_TOKENS = 64  # largest number


def scores_files(config: decoder.DecoderConfig, dtype: str) -> bool:
    """Tells whether the learner's probe reads the written file.

    On CPUs XLA would copy bfloat16 parameters to float32. Those of a file are in the order of
    `DecoderConfig.for_cpu`, which it reads in place.
    """
    return jax.default_backend() == "cpu" and dtype == "bfloat16" and config.experts is None


def make_probe_scorer(config: decoder.DecoderConfig, params: decoder.Params, dtype: str) -> Any:
    """Makes a jitted function that scores a prompt.

    It is (params like `params`, tokens [P]) -> [P - 1] f32, their log-probabilities in nats. There
    is a program for each P.
    """

    def score(params: decoder.Params, tokens: jax.Array) -> jax.Array:
        execution = decoder.Execution(dtype=jax.numpy.dtype(dtype))
        hidden = decoder.hidden_states(config, params, tokens[None], execution=execution)
        # [P - 1, V]: the scores after every token but the last, for the token that follows it.
        logprobs = jax.nn.log_softmax(decoder.score_tokens(config, params, hidden[0, :-1]))
        return jax.numpy.take_along_axis(logprobs, tokens[1:, None], axis=1)[:, 0]

    mesh = parameter_mesh(params)
    # Replicated: every host compares the whole result with those of its own servers.
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return jax.jit(score, out_shardings=sharding)
