"""The train step of a critic: a clipped squared error, with the optimizer step of `TrainStep`."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.rl.losses import Sums
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.train_step import Metrics, Params, TrainState, TrainStep, Update
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.value_targets import ValueTargets

# (the critic's parameters, other parameters, microbatch without the M axis) -> values before
# response tokens [B, C] f32
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
    """Sums the clipped value loss over tokens, as verl does.

    The loss of a token is 0.5 max((v - G)^2, (clip(v, old - clip, old + clip) - G)^2).

    Args:
      value: [B, C] f32, v.
      targets: Targets, [B, C] each; `target` is G, `value` is old.
      clip: Largest distance to the old value at which the value still learns.
    """
    # `where` before the difference: a NaN of padding would survive a product with the weight 0.
    has_target = targets.weight > 0.0
    value = jnp.where(has_target, value, 0.0)
    old_value = jnp.where(has_target, targets.value, 0.0)
    target = jnp.where(has_target, targets.target, 0.0)
    plain = (value - target) ** 2
    # The larger loss counts: a value that moved too far away from its target still learns.
    bounded = (jnp.clip(value, old_value - clip, old_value + clip) - target) ** 2
    return ValueSums(
        loss=0.5 * jnp.sum(jnp.maximum(plain, bounded) * targets.weight),
        tokens=jnp.sum(targets.weight),
        # Where the bounded loss is larger it is constant in the value, so the token
        # has no gradient.
        clipped=jnp.sum((bounded > plain) * targets.weight),
    )


def make_value_update(
    values: Values, optimizer: Optimizer, *, clip: float, state_shardings: TrainState | None = None
) -> Update:
    """Builds the train step of a critic; its arguments are those `update.make_update` takes.

    The loss is a mean over the tokens of a minibatch that have a target. The metrics are
    `critic/{loss,clip_fraction,grad_norm,lr,skipped}`.
    """

    def sums(params: Params, frozen: Params, micro: StepBatch, iteration: Array) -> ValueSums:
        del iteration
        return value_loss(values(params, frozen, micro), micro.values, clip=clip)

    def divisor(batch: StepBatch) -> Array:
        # Not the response tokens: with one value a step, only the first token of a
        # response has a target.
        return jnp.maximum(jnp.sum(batch.values.weight), 1.0)

    def metrics(sums: ValueSums, batch: StepBatch) -> Metrics:
        del batch
        return sums.means()

    step = TrainStep("critic", optimizer, sums, ValueSums.zero, divisor, metrics, state_shardings)
    return step.compile()
