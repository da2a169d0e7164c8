"""The optimizer of updates: AdamW, or Muon for the matrices of layers.

Departure from the published settings: weight decay spares leaves named `bias` and `scale` (norms),
as is usual for language models.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = Any

SCHEDULES = ("constant", "linear", "cosine")
OPTIMIZERS = ("adamw", "muon")


class Optimizer(NamedTuple):
    """An optax transformation without the learning rate, and the learning rate by iteration."""

    transform: optax.GradientTransformation
    schedule: optax.Schedule


def make_optimizer(
    *,
    lr: float,
    name: str = "adamw",
    schedule: str = "constant",
    total: int = 1,
    warmup_fraction: float = 0.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    grad_clip: float = 1.0,
    moment_dtype: Any = jnp.float32,
) -> Optimizer:
    """Builds AdamW or Muon behind a clip of the gradient, with a linear warm-up.

    All arguments but `total`, `b1` and `eps` are keys of `config.optim`.

    Args:
      lr: Peak learning rate.
      name: "adamw"; or "muon" for the matrices of layers and AdamW for everything else.
      schedule: Schedule after the warm-up: "constant", or "linear" or "cosine" down to 0.
      total: Number of iterations of the run, or of updates if the schedule counts these.
      warmup_fraction: Fraction of them with a rising rate; the first one already moves.
      b1: Decay of the first moment.
      b2: Decay of the second moment.
      eps: Number added to the root of the second moment.
      weight_decay: Decoupled weight decay; leaves named `bias` or `scale` have none.
      grad_clip: Largest global gradient norm; larger ones are scaled down.
      moment_dtype: Type of the stored first moment. The second is float32: a step changes it by
        1 - b2 of its size, which bfloat16 rounds away.
    """
    warmup = round(warmup_fraction * total)
    # From lr / warmup at the first iteration, since a rate of 0 would waste it, to lr
    # at the last one.
    rising = optax.linear_schedule(lr / max(warmup, 1), lr, max(warmup - 1, 1))
    # `join_schedules` counts the second schedule from the end of the warm-up.
    remaining = max(total - warmup, 1)
    schedules = {
        "constant": optax.constant_schedule(lr),
        "linear": optax.linear_schedule(lr, 0.0, remaining),
        "cosine": optax.cosine_decay_schedule(lr, remaining),
    }
    scale = optax.scale_by_adam(b1, b2, eps, mu_dtype=moment_dtype)
    if name == "muon":
        from gigpo_jax.rl.muon import label_leaves, scale_by_muon

        scales = {"muon": scale_by_muon(moment_dtype), "adamw": scale}
        scale = optax.partition(scales, label_leaves)
    transform = optax.chain(
        # The order of AdamW: the clip sees raw gradients, and the decay is not divided by
        # the second moment.
        optax.clip_by_global_norm(grad_clip),
        scale,
        optax.add_decayed_weights(weight_decay, _decay_mask),
    )
    # Beside the transformation: the rate follows the iteration, which has several updates.
    return Optimizer(transform, optax.join_schedules([rising, schedules[schedule]], [warmup]))


def scheduled_rates(optimizer: Optimizer, total: int) -> np.ndarray:
    """Learning rates of the iterations of a run, [total] f32."""
    # Compiled, as in the update: computed an operation at a time, they have other last bits.
    rates = jax.jit(jax.vmap(optimizer.schedule))(np.arange(total))
    return np.asarray(rates, np.float32)


def _decay_mask(params: Params) -> Any:
    """Returns a tree that is True for leaves with weight decay: all not named `bias` or `scale`."""

    def has_decay(path: tuple, _: jax.Array) -> bool:
        # A tree that is one array has no names.
        return not path or getattr(path[-1], "key", None) not in ("bias", "scale")

    return jax.tree_util.tree_map_with_path(has_decay, params)
