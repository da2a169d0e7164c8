"""The supervised update of a policy, whose loss is the cross-entropy of the response tokens."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from gigpo_jax.rl.losses import LossSums, loss_divisor
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.train_step import TrainState, Update
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import Forward, make_policy_update


def make_sft_update(
    forward: Forward,
    optimizer: Optimizer,
    *,
    chunk: int = 1024,
    state_shardings: TrainState | None = None,
    in_pieces: bool = False,
) -> Update:
    """Builds the supervised step, whose loss is the cross-entropy of the response tokens.

    Arguments and result are as for `make_update`.
    """

    def loss(*sums: Any, iteration: jax.Array) -> LossSums:
        del iteration
        return imitation_loss(*sums)

    return make_policy_update(
        forward,
        optimizer,
        loss,
        loss_divisor,
        chunk=chunk,
        temperature=1.0,
        state_shardings=state_shardings,
        masks=False,
        in_pieces=in_pieces,
    )


def imitation_loss(logprob: Array, entropy: Array, batch: StepBatch) -> LossSums:
    """Sums the cross-entropy of the response tokens; arguments as for `policy_loss`."""
    weight = batch.weight

    def total(x: Array) -> Array:
        return jnp.sum(jnp.where(weight > 0, x, 0.0) * weight)

    return replace(
        LossSums.zero(),
        loss=-total(logprob),
        tokens=jnp.sum(weight),
        entropy=lax.stop_gradient(total(entropy)),
    )
