"""Chooses the devices of an engine."""

from collections.abc import Sequence

import jax

from gigpo_jax.engines.jax.placement import Placement, parameter_mesh
from gigpo_jax.models import decoder


def place_engine(
    params: decoder.Params, tensor: int = 1, reserved: Sequence[jax.Device] = ()
) -> Placement:
    """Chooses the devices of an engine on this host; arguments as in `EngineSettings`."""
    mesh = parameter_mesh(params)
    if mesh is not None or reserved:
        from gigpo_jax.engines.jax.split_placement import place_split_engine

        return place_split_engine(mesh, tensor, reserved)
    sharding = getattr(jax.tree.leaves(params)[0], "sharding", None)  # numpy arrays have none
    return Placement(next(iter(sharding.device_set)) if sharding else jax.local_devices()[0])
