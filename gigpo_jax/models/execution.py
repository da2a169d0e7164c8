"""How the forward pass computes: dtype, rematerialisation, kernels, sharding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from gigpo_jax.models.attention import attention, kept_attention

INPUT = "layer_input"  # the name under which rematerialisation finds a layer's input

REMAT_POLICIES: dict[str, Callable[..., Any] | None] = {
    "full": None,  # keep each layer's input only
    "attention": kept_attention,  # and the result of attention
    "dots": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,  # and the projections, not attention
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(  # as full, with the inputs in host memory
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


@dataclass(frozen=True)
class Execution:
    """How `hidden_states` computes; the result is the same up to rounding.

    Attributes:
      dtype: compute dtype; None is the parameters'.
      remat: "none", or what of `REMAT_POLICIES` the backward pass recomputes.
      unroll: layers per step of the scan; more compile longer, and run faster in models of few layers.
      max_segment: limit of a segment's length, tokens; saves work in rows of many short segments. None: T.
      attention: as `attention.attention`, with its kernels.
      constrain: applied to the residual stream [B, T, D] before the first and after each layer, for sharding.
    """

    dtype: Any = None
    remat: str = "none"
    unroll: int = 1
    max_segment: int | None = None
    attention: Callable[..., jax.Array] = attention
    constrain: Callable[[jax.Array], jax.Array] = lambda x: x

    def __post_init__(self) -> None:
        if self.remat != "none" and self.remat not in REMAT_POLICIES:
            raise ValueError(f"remat={self.remat!r}: choose none, {', '.join(REMAT_POLICIES)}")
