"""How the forward pass computes: dtype, rematerialisation, kernels, sharding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from gigpo_jax.models.attention import attention, saves_attention

# (x [.., D], ids [.., k] i32, gates [.., k] f32, kernels [E, D, F], [E, D, F] and [E, F, D])
# -> [.., D]
Experts = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
INPUT = "layer_input"  # name of a layer's input for `jax.checkpoint`

# What the backward pass keeps; it recomputes the rest.
REMAT_POLICIES: dict[str, Callable[..., Any] | None] = {
    # The input of each layer.
    "full": None,
    # Beside it the result of attention, which is the most expensive one to recompute.
    "attention": saves_attention,
    # Beside it the projections, but not attention: products of attention have batch axes, products
    # of projections have none.
    "dots": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    # The input of each layer, in host memory.
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


@dataclass(frozen=True)
class Execution:
    """Settings of `hidden_states` that change its cost, and its result only by rounding.

    Attributes:
      dtype: compute dtype; None is the parameters'.
      remat: "none", or a key of `REMAT_POLICIES`.
      unroll: layers per step of the scan; more compile longer, and run faster in models of few
        layers.
      max_segment: longest segment in tokens; saves work in rows of many short segments. None: T.
      attention: function with the arguments of `attention.attention`.
      experts: function for the experts; None: `experts.apply_experts`.
      constrain: sharding constraint of the residual stream [B, T, D], applied before the first and
        after each layer.
    """

    dtype: Any = None
    remat: str = "none"
    unroll: int = 1
    max_segment: int | None = None
    attention: Callable[..., jax.Array] = attention
    experts: Experts | None = None
    constrain: Callable[[jax.Array], jax.Array] = lambda x: x

    def add_remat(self, function: Callable, turns: int) -> Callable:
        """Makes a function of a layer, in a scan of so many turns, keep what `remat` says."""
        if self.remat == "none":
            return function
        # In a scan XLA cannot compute layers again too early, and the barriers of prevent_cse would
        # only cost time. A scan of one turn is no loop.
        return jax.checkpoint(function, policy=REMAT_POLICIES[self.remat], prevent_cse=turns < 2)
