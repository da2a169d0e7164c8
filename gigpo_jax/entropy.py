"""Entropy of the policy at every response token, for saved rollouts.

It costs one forward pass over the steps that are saved. Engines do not compute it: their programs are the same in runs
that save nothing, and vLLM gives log-probabilities of sampled tokens alone.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from gigpo_jax.batching import make_minibatches, step_samples
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import microbatch, response_logprobs
from gigpo_jax.run import partition
from gigpo_jax.trajectory import Step


def make_token_entropies(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, temperature: float
) -> Callable[[Any, Any, Sequence[Step]], list[np.ndarray]]:
    """Builds a function (trained parameters, frozen ones, steps) -> for each step [R] f32, nats.

    All hosts call it together, each with its own steps.

    Args:
      config: as from `config.resolve`.
      policy: the model; its parameters are not kept.
      mesh: as from `partition.make_mesh`.
      temperature: of the distribution that the tokens were sampled from; 0 stands for 1, as in an engine's
        log-probabilities.
    """
    forward = forward_function(config, policy.config, mesh)
    rows, steps_at_once = partition.local_rows(mesh, config.batch.rows), config.train.minibatch

    @jax.jit
    def score(trained: Any, frozen: Any, batch: StepBatch) -> jax.Array:
        bound = functools.partial(forward, trained, frozen)
        how = {"chunk": config.batch.logprob_chunk, "temperature": temperature or 1.0}

        def body(m: jax.Array, out: jax.Array) -> jax.Array:
            _, entropy = response_logprobs(bound, microbatch(batch, m), **how)
            return jax.lax.dynamic_update_index_in_dim(out, entropy, m, 0)

        return jax.lax.fori_loop(0, batch.microbatches, body, jnp.zeros_like(batch.behaviour))

    def entropies(trained: Any, frozen: Any, steps: Sequence[Step]) -> list[np.ndarray]:
        counts = partition.all_hosts(np.array([len(steps)]))[:, 0]
        first = int(counts[: jax.process_index()].sum())
        # In place of an advantage each token carries the number of its step over all hosts, exact below 2^24.
        samples = step_samples(steps, first + np.arange(len(steps), dtype=np.float32))
        packing: dict[str, Any] = {"steps": steps_at_once, "row_length": config.batch.row_length, "rows": rows}
        batches = make_minibatches(samples, rng=np.random.default_rng(0), agree=partition.all_hosts, **packing)
        number, values = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        for host in batches:
            batch = partition.global_batch(mesh, host)
            found, at, weight = map(_whole, (score(trained, frozen, batch), batch.advantage, batch.weight))
            number.append(at[weight > 0].astype(np.int64) - first)
            values.append(found[weight > 0])
        where = np.concatenate(number)
        order = np.argsort(where, kind="stable")  # tokens of a step stand in one row, in order
        where, entropy = where[order], np.concatenate(values)[order]
        edges = np.searchsorted(where, np.arange(len(steps) + 1))
        return [entropy[low:high] for low, high in itertools.pairwise(edges)]

    return entropies


def _whole(array: jax.Array) -> np.ndarray:
    """An array with the rows of all hosts, on each of them."""
    if jax.process_count() == 1:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
