"""Log-probability and entropy of every response token under the policy, outside of updates.

It costs one forward pass over the samples. Engines do not compute entropy: their programs are the same whether it is
needed or not, and vLLM gives log-probabilities of sampled tokens alone.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from gigpo_jax.batching import Sample, make_minibatches
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import microbatch, response_logprobs
from gigpo_jax.run import partition


class TokenLogprobs(NamedTuple):
    """Of N samples, one array [R] f32 a sample, nats."""

    logprob: list[np.ndarray]
    entropy: list[np.ndarray]

    def means(self) -> dict[str, np.ndarray]:
        """The means over the tokens of each sample, [N] f32, by the names of `StepColumns`; 0 without tokens."""

        def mean(values: list[np.ndarray]) -> np.ndarray:
            return np.array([x.mean() if len(x) else 0.0 for x in values], np.float32)

        return {"logprob": mean(self.logprob), "entropy": mean(self.entropy)}


Score = Callable[[Any, Any, Sequence[Sample]], TokenLogprobs]  # (trained parameters, frozen ones, samples)


def make_token_logprobs(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, temperature: float) -> Score:
    """Builds a function (trained parameters, frozen ones, samples) -> `TokenLogprobs`.

    All hosts call it together, each with its own samples.

    Args:
      config: as from `config.resolve`.
      policy: the model; its parameters are not kept.
      mesh: as from `partition.make_mesh`.
      temperature: of the distribution that the tokens were sampled from; 0 stands for 1, as in an engine's
        log-probabilities.
    """
    forward = forward_function(config, policy.config, mesh)
    how = {"chunk": config.batch.logprob_chunk, "temperature": temperature or 1.0}

    def measure(trained: Any, frozen: Any, batch: StepBatch) -> tuple[jax.Array, ...]:
        return response_logprobs(functools.partial(forward, trained, frozen), batch, **how)

    found = make_token_arrays(config, mesh, over_microbatches(measure))
    return lambda trained, frozen, samples: TokenLogprobs(*found(trained, frozen, samples))


def over_microbatches(measure: Callable[[Any, Any, StepBatch], tuple[jax.Array, ...]]) -> Callable[..., Any]:
    """Jits (parameters, other parameters, minibatch) -> arrays [M, B, C] f32.

    `measure` has the same arguments, with a microbatch without the M axis, and gives arrays [B, C].
    """

    @jax.jit
    def measured(params: Any, others: Any, batch: StepBatch) -> tuple[jax.Array, ...]:
        def body(m: jax.Array, out: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            found = measure(params, others, microbatch(batch, m))
            return tuple(jax.lax.dynamic_update_index_in_dim(o, x, m, 0) for o, x in zip(out, found, strict=True))

        kinds = jax.eval_shape(measure, params, others, microbatch(batch, 0))
        return jax.lax.fori_loop(0, batch.microbatches, body, tuple(jnp.zeros_like(batch.behaviour) for _ in kinds))

    return measured


def make_token_arrays(
    config: ConfigDict, mesh: jax.sharding.Mesh, measured: Callable[..., Any]
) -> Callable[[Any, Any, Sequence[Sample]], list[list[np.ndarray]]]:
    """Builds a function (parameters, other parameters, samples) -> for each of several arrays, one [R] f32 a sample.

    All hosts call it together, each with its own samples.

    Args:
      config: as from `config.resolve`.
      mesh: as from `partition.make_mesh`.
      measured: as from `over_microbatches`.
    """
    rows, steps_at_once = partition.local_rows(mesh, config.batch.rows), config.train.minibatch

    def arrays(params: Any, others: Any, samples: Sequence[Sample]) -> list[list[np.ndarray]]:
        counts = partition.all_hosts(np.array([len(samples)]))[:, 0]
        first = int(counts[: jax.process_index()].sum())
        # In place of an advantage each token carries the number of its sample over all hosts, exact below 2^24.
        numbered = [replace(sample, advantage=first + n, weight=1.0) for n, sample in enumerate(samples)]
        packing: dict[str, Any] = {"steps": steps_at_once, "row_length": config.batch.row_length, "rows": rows}
        batches = make_minibatches(numbered, rng=np.random.default_rng(0), agree=partition.all_hosts, **packing)
        number, values = [], []
        for host in batches:
            batch = partition.global_batch(mesh, host)
            at, weight, *found = map(_whole, (batch.advantage, batch.weight, *measured(params, others, batch)))
            number.append(at[weight > 0].astype(np.int64) - first)
            values.append(np.stack([x[weight > 0] for x in found]))
        where = np.concatenate(number)
        order = np.argsort(where, kind="stable")  # tokens of a sample stand in one row, in order
        edges = np.searchsorted(where[order], np.arange(len(samples) + 1))
        ordered = np.concatenate(values, axis=1)[:, order]
        return [[of[low:high] for low, high in itertools.pairwise(edges)] for of in ordered]

    return arrays


def _whole(array: jax.Array) -> np.ndarray:
    """An array with the rows of all hosts, on each of them."""
    if jax.process_count() == 1:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
