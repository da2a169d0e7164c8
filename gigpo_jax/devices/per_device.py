"""Kernels and experts of the learner on each device: XLA splits its own operations alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from gigpo_jax.devices.mesh import ROWS, RULES
from gigpo_jax.models.execution import Experts
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.experts import apply_experts, sum_over_devices


def on_each_device(
    mesh: Mesh, attend: Callable[..., jax.Array], kv_heads: int
) -> Callable[..., jax.Array]:
    """Runs an attention on each device over the device's own rows and heads.

    Heads are split where `tensor` divides them.

    Args:
      mesh: Mesh of the learner.
      attend: Attention (query [B, T, H, K], key [B, T, G, K], value [B, T, G, K], segment_ids
        [B, T] or [B, 2, T], **options) -> [B, T, H, K].
      kv_heads: Number of key/value heads, G.
    """
    heads = P(ROWS, None, "tensor" if kv_heads % mesh.shape["tensor"] == 0 else None)

    def run(*arrays: jax.Array, **options: Any) -> jax.Array:
        return jax.shard_map(
            partial(attend, **options),
            mesh=mesh,
            in_specs=(heads, heads, heads, P(ROWS)),
            out_specs=heads,
            # Pallas kernels do not say over which axes their results vary.
            check_vma=False,
        )(*arrays)

    return run


def experts_on_each_device(mesh: Mesh, apply: Experts, experts: ExpertConfig) -> Experts:
    """Runs experts on each device, which sorts the tokens of its own rows.

    Experts are split where the mesh axis divides them.

    Args:
      mesh: Mesh of the learner.
      apply: Function for the experts of one device.
      experts: Experts of the model.
    """
    if mesh.size == 1:
        return apply
    axis = RULES["expert"]
    assert axis is not None
    is_split = experts.count % mesh.shape[axis] == 0
    rows = P(ROWS)
    kernels = P(axis if is_split else None)
    return jax.shard_map(
        sum_over_devices(apply, axis) if is_split else apply,
        mesh=mesh,
        # Kernels are gathered over the axes of rows, as they are for other products.
        in_specs=(rows, rows, rows, kernels, kernels, kernels),
        out_specs=rows,
        # Pallas kernels do not say over which axes their results vary.
        check_vma=False,
    )


def learner_experts(mesh: Mesh, kernels: str, experts: ExpertConfig) -> Experts:
    """Makes the function for the experts of a model; `kernels` as from `kernels_for`."""
    return experts_on_each_device(mesh, partial(apply_experts, kernels=kernels), experts)
