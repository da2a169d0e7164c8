"""Log-probability and entropy of every response token under the policy, in one forward pass.

Entropies of engines (`engine.entropies`) are of the weights that sampled instead.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import all_hosts, global_batch
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.rows import row_settings
from gigpo_jax.learner.samples import Sample
from gigpo_jax.policy import Policy, forward_function, longest_text, longest_tree, shares_prefixes
from gigpo_jax.rl.train_step import select_microbatch
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import response_logprobs


class TokenLogprobs(NamedTuple):
    """Scores of N samples.

    Attributes:
      logprob: log-probabilities of response tokens, one [R] f32 a sample, nats.
      entropy: entropies of their distributions, one [R] f32 a sample, nats.
    """

    logprob: list[np.ndarray]
    entropy: list[np.ndarray]


# (trained parameters, frozen ones, samples)
Score = Callable[[Any, Any, Sequence[Sample]], TokenLogprobs]
# (parameters, other parameters, samples) -> for each of several arrays, one [R, ...] f32 a sample
TokenArrays = Callable[[Any, Any, Sequence[Sample]], list[list[np.ndarray]]]


def make_token_logprobs(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, temperature: float
) -> Score:
    """Builds a function for this host's samples, which all hosts call together.

    The parameters of `policy` are not kept. The temperature is the sampler's; 0 stands for 1, as in
    an engine's log-probabilities.
    """
    forward = forward_function(config, policy.config, mesh)
    settings = {"chunk": config.batch.logprob_chunk, "temperature": temperature or 1.0}

    def measure(trained: Any, frozen: Any, batch: StepBatch) -> tuple[jax.Array, ...]:
        return response_logprobs(functools.partial(forward, trained, frozen), batch, **settings)

    token_arrays = make_token_arrays(config, mesh, over_microbatches(measure))

    def score(trained: Any, frozen: Any, samples: Sequence[Sample]) -> TokenLogprobs:
        return TokenLogprobs(*token_arrays(trained, frozen, samples))

    return score


def over_microbatches(
    measure: Callable[[Any, Any, StepBatch], tuple[jax.Array, ...]],
) -> Callable[..., Any]:
    """Jits a measurement over microbatches: arrays [B, C, ...] become [M, B, C, ...] f32."""

    @jax.jit
    def run_microbatches(params: Any, others: Any, batch: StepBatch) -> tuple[jax.Array, ...]:
        def body(m: jax.Array, out: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            rows = measure(params, others, select_microbatch(batch, m))
            return tuple(
                jax.lax.dynamic_update_index_in_dim(array, row, m, 0)
                for array, row in zip(out, rows, strict=True)
            )

        # For the shapes of the arrays; nothing is computed.
        outputs = jax.eval_shape(measure, params, others, select_microbatch(batch, 0))
        stored = len(batch.behaviour)
        # Microbatches behind the last one with rows stay 0.
        start = tuple(jnp.zeros((stored, *output.shape), jnp.float32) for output in outputs)
        return jax.lax.fori_loop(0, batch.microbatches, body, start)

    return run_microbatches


def make_token_arrays(
    config: ConfigDict, mesh: jax.sharding.Mesh, run_microbatches: Callable[..., Any]
) -> TokenArrays:
    """Builds a function for this host's samples, called by all hosts, from `over_microbatches`."""
    rows = row_settings(config, mesh)
    shares = shares_prefixes(config)

    def token_arrays(params: Any, others: Any, samples: Sequence[Sample]) -> list[list[np.ndarray]]:
        counts = all_hosts(np.array([len(samples)]))[:, 0]
        first = int(counts[: jax.process_index()].sum())
        # In place of an advantage each token carries the number of its sample over all hosts, exact
        # below 2^24.
        batches = make_minibatches(
            [replace(x, advantage=first + n, weight=1.0) for n, x in enumerate(samples)],
            steps=config.train.minibatch,
            **rows,
            # Any order will do: the numbers put the results back in the order of the samples. Dealt
            # in the order of their tokens, texts that begin alike meet in a minibatch.
            rng=None if shares else np.random.default_rng(0),
            gather=all_hosts,
            longest=longest_text(config) - 1,
            longest_tree=longest_tree(config) if shares else 0,
        )
        owners = []
        values = []
        for local_batch in batches:
            batch = global_batch(mesh, local_batch)
            arrays = [_gather_rows(array) for array in run_microbatches(params, others, batch)]
            is_response = _gather_rows(batch.weight) > 0
            numbers = _gather_rows(batch.advantage)[is_response]
            owners.append(numbers.astype(np.int64) - first)
            values.append(np.stack([array[is_response] for array in arrays]))
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")  # tokens of a sample stand in one row, in order
        edges = np.searchsorted(owner[order], np.arange(len(samples) + 1))
        ordered = np.concatenate(values, axis=1)[:, order]
        # Tokens of other hosts lie before the first edge and behind the last one.
        return [np.split(row, edges)[1:-1] for row in ordered]

    return token_arrays


def _gather_rows(array: jax.Array) -> np.ndarray:
    """An array with all hosts' rows, on each of them."""
    if jax.process_count() == 1:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
