"""The train step of a critic: a clipped squared error, with the gradient sum and optimizer step of `rl.update`."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.rl.losses import Sums
from gigpo_jax.rl.types import StepBatch, ValueTargets
from gigpo_jax.rl.update import Metrics, Optimizer, Params, TrainState, Update, make_step

# (the critic's parameters, other parameters, microbatch without the M axis) -> values before response tokens [B, C] f32
Values = Callable[[Params, Params, StepBatch], Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ValueSums(Sums):
    """Sums over tokens at which a critic learns.

    Attributes:
      clipped: [] f32, tokens whose gradient the clip removed.
    """

    clipped: Array

    def means(self) -> dict[str, Array]:
        """The metrics but the loss by name."""
        return {"critic/clip_fraction": self.clipped / jnp.maximum(self.tokens, 1.0)}


def value_loss(value: Array, targets: ValueTargets, *, clip: ArrayLike) -> ValueSums:
    """Sums 0.5 max((v - G)^2, (clip(v, old - clip, old + clip) - G)^2) over tokens, as verl does.

    Args:
      value: [B, C] f32, v.
      targets: [B, C] each; `target` is G, `value` is old.
      clip: how far the value may move from the old one and still learn.
    """
    learns = targets.weight > 0.0
    value, old, target = (jnp.where(learns, x, 0.0) for x in (value, targets.value, targets.target))
    plain, bounded = (value - target) ** 2, (jnp.clip(value, old - clip, old + clip) - target) ** 2
    return ValueSums(
        loss=0.5 * jnp.sum(jnp.maximum(plain, bounded) * targets.weight),
        tokens=jnp.sum(targets.weight),
        clipped=jnp.sum((bounded > plain) * targets.weight),
    )


def make_value_update(
    values: Values, optimizer: Optimizer, *, clip: float, state_shardings: TrainState | None = None
) -> Update:
    """Builds the train step of a critic; see `update.make_update`.

    The loss is a mean over the tokens of a minibatch at which the critic learns. The metrics are
    `critic/{loss,clip_fraction,grad_norm,lr,skipped}`.
    """

    def sums(params: Params, frozen: Params, micro: StepBatch, iteration: Array) -> ValueSums:
        del iteration
        return value_loss(values(params, frozen, micro), micro.values, clip=clip)

    def total(batch: StepBatch) -> Array:
        return jnp.maximum(jnp.sum(batch.values.weight), 1.0)

    def metrics(sums: ValueSums, batch: StepBatch) -> Metrics:
        del batch
        return sums.means()

    return make_step(optimizer, sums, ValueSums.zero, total, metrics, name="critic", state_shardings=state_shardings)
