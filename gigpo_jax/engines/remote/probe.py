"""Scores of a probe prompt, by which learner and server compare their weights."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from gigpo_jax.engines.jax.placement import parameter_mesh
from gigpo_jax.models import decoder

PROBE_TOKENS = 64  # largest number


def scores_files(config: decoder.DecoderConfig, dtype: str) -> bool:
    """Returns whether the learner's probe reads the written file instead of its parameters.

    On CPUs XLA would copy bfloat16 parameters to float32. The parameters of a file are in the order
    of `DecoderConfig.for_cpu`, which XLA reads in place.
    """
    return jax.default_backend() == "cpu" and dtype == "bfloat16" and config.experts is None


def make_probe_scorer(config: decoder.DecoderConfig, params: decoder.Params, dtype: str) -> Any:
    """Makes a jitted function (params like `params`, tokens [P]) -> log-probabilities [P - 1] f32.

    They are in nats. There is a program for each P.
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
