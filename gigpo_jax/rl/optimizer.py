"""The optimizers of updates: AdamW, or Muon for the matrices of the layers.

Departure from the published settings: weight decay spares leaves named `bias` and `scale` (norms),
as is usual for language models.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

Params = Any

SCHEDULES = ("constant", "linear", "cosine")
OPTIMIZERS = ("adamw", "muon")

# Muon (Jordan et al., 2024): decay of its only moment, as in the authors' code.
MUON_DECAY = 0.95
# Root mean square of an update of Muon. That of AdamW is about as large, so that both take the same
# learning rates and weight decay ("Muon is Scalable for LLM Training", arXiv 2502.16982, eq. 4).
MUON_RMS = 0.2
# Kernels are stacked over layers, [L, in, out]; each layer is a matrix of its own.
MATRIX = contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)


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

    All parameters but `total` are keys of `config.optim`.

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

    Returns:
      The transformation and its schedule.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}: choose one of {', '.join(SCHEDULES)}")
    if name not in OPTIMIZERS:
        raise ValueError(f"name={name!r}: choose one of {', '.join(OPTIMIZERS)}")
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
        scales = {"muon": _scale_by_muon(moment_dtype), "adamw": scale}
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


def label_leaves(params: Params) -> Any:
    """Labels the matrices of layers "muon", and embeddings, norms and biases "adamw", for which the
    authors of Muon advise AdamW.
    """

    def label(path: tuple, _: Any) -> str:
        names = [getattr(key, "key", None) for key in path]
        is_layer = "layers" in names or "dense_layers" in names
        return "muon" if is_layer and names[-1] == "kernel" else "adamw"

    return jax.tree_util.tree_map_with_path(label, params)


def _scale_by_muon(moment_dtype: Any) -> optax.GradientTransformation:
    def dimension_numbers(params: Params) -> Any:
        return jax.tree.map(lambda _: MATRIX, params)

    def scale_rms(direction: Params, _: Params) -> Params:
        # All singular values of a direction are about 1, so its root mean square is
        # 1 / sqrt(max(in, out)).
        return direction * (MUON_RMS * math.sqrt(max(direction.shape[-2:])))

    return optax.chain(
        contrib.scale_by_muon(
            beta=MUON_DECAY,
            mu_dtype=moment_dtype,
            weight_dimension_numbers=dimension_numbers,
        ),
        optax.stateless_with_tree_map(scale_rms),
    )


def _decay_mask(params: Params) -> Any:
    """Returns a tree that is True for leaves with weight decay: all not named `bias` or `scale`."""

    def has_decay(path: tuple, _: jax.Array) -> bool:
        # A tree that is one array has no names.
        return not path or getattr(path[-1], "key", None) not in ("bias", "scale")

    return jax.tree_util.tree_map_with_path(has_decay, params)
