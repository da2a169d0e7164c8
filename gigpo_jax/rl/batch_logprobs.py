"""Log-probabilities of the response tokens of minibatches, for references and old policies."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from gigpo_jax.rl.train_step import Params, select_microbatch
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import Forward, response_logprobs


def make_logprobs(
    forward: Forward, *, chunk: int = 1024, temperature: float = 1.0
) -> Callable[..., jax.Array]:
    """Builds a jitted function for the log-probabilities of response tokens.

    The function takes (params, minibatch, frozen=None) and returns [M, B, C] f32, 0 in padding, for
    a minibatch's fields `reference` and `proximal`. Arguments are as for `make_update`.
    """

    def logprobs(params: Params, batch: StepBatch, frozen: Params = None) -> jax.Array:
        bound = partial(forward, params, frozen)

        def body(m: jax.Array, out: jax.Array) -> jax.Array:
            logprob, _ = response_logprobs(
                bound, select_microbatch(batch, m), chunk=chunk, temperature=temperature
            )
            return jax.lax.dynamic_update_index_in_dim(out, logprob, m, 0)

        # The number of microbatches is data: one program serves minibatches of any length.
        out = jax.lax.fori_loop(0, batch.microbatches, body, jnp.zeros_like(batch.behaviour))
        # Padding has the score of a token at position 0, which means nothing.
        return jnp.where(batch.weight > 0, out, 0.0)

    return jax.jit(logprobs)
