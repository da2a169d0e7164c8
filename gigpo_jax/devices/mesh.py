"""The device mesh and the shardings of parameters and batches.

Mesh axes: `data` (rows split, parameters replicated), `fsdp` (rows and parameters split), `tensor`
(heads, MLP or experts, and vocabulary split). The model names the logical axes of its parameters;
`RULES` maps them to mesh axes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")  # the mesh axes that split the rows of a batch

# Logical axis of a parameter -> mesh axis, or None: replicated.
RULES: dict[str, str | None] = {
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head": None,
    "mlp": "tensor",
    # Every device of `tensor` has all tokens of its rows, so that experts need no exchange but the
    # sum that a split MLP has too, no token is dropped, and the engine splits them as well.
    "expert": "tensor",
    "expert_mlp": None,
    "router": None,
    "patch": None,
    "rank": None,
    "value": None,
    "delta": None,
}


def make_mesh(
    data: int = -1,
    fsdp: int = 1,
    tensor: int = 1,
    *,
    devices: Sequence[jax.Device] | None = None,
    engine_devices: int = 0,
) -> Mesh:
    """Arranges devices, by default of all hosts; the devices of `tensor` must be on one host.

    One of the sizes can be -1 for all devices that are left. `engine_devices` of each host are
    reserved for the engine, for messages.

    Raises:
      InputError: the sizes do not fit the devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    if len(devices) == 1 and sorted(sizes.values()) in ([1, 1, 1], [-1, 1, 1]):
        grid = np.array(devices).reshape(1, 1, 1)
    else:
        from gigpo_jax.devices.mesh_grid import arrange_devices

        grid = arrange_devices(devices, sizes, engine_devices)
    # Auto: XLA chooses the shardings between those that are named.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def split_devices(
    config: ConfigDict, devices: Sequence[jax.Device] | None = None
) -> tuple[list[jax.Device], list[jax.Device]]:
    """Splits devices: the learner's of all hosts, and the engine's, the last ones, of this host.

    Raises:
      InputError: no device would be left to train, or they are TPUs of several hosts.
    """
    devices = list(jax.devices() if devices is None else devices)
    if not config.engine.devices:
        return devices, []
    from gigpo_jax.devices.reserved_devices import reserve_devices

    return reserve_devices(config.engine.devices, devices)


def learner_mesh(config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arranges the learner's devices; raises as `make_mesh` and `split_devices`."""
    learner, _ = split_devices(config, devices)
    return make_mesh(**config.mesh, devices=learner, engine_devices=config.engine.devices)


def shard_by_rules(mesh: Mesh, logical_axes: Any, shapes: Any) -> tuple[Any, list[str]]:
    """The sharding of every parameter, or shape of one, by `RULES` for its tuple of axis names.

    Returns:
      Tree of `NamedSharding`, and a line for every axis that is replicated because it does not
      divide evenly.
    """
    notes: list[str] = []

    def shard(path: tuple, leaf: Any, axes: tuple[str, ...]) -> NamedSharding:
        spec: list[str | None] = []
        for name, size in zip(axes, leaf.shape, strict=True):
            axis = RULES[name]
            # A mesh axis can split one dimension only, and XLA splits evenly only.
            if axis is not None and (axis in spec or size % mesh.shape[axis]):
                parameter = jax.tree_util.keystr(path)
                notes.append(
                    f"{parameter}: axis {name} of {size} is repeated, not split over "
                    f"{axis}={mesh.shape[axis]}"
                )
                axis = None
            spec.append(axis)
        return NamedSharding(mesh, P(*spec))

    return jax.tree_util.tree_map_with_path(shard, shapes, logical_axes), notes


def shard_parameters(mesh: Mesh, logical_axes: Any, shapes: Any) -> Any:
    """The sharding of every parameter; logs the axes that are replicated."""
    shardings, notes = shard_by_rules(mesh, logical_axes, shapes)
    for note in notes:
        logging.warning(note)
    return shardings


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of a value that every device holds whole."""
    return NamedSharding(mesh, P())


def row_constraint(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Returns the function for `Execution.constrain` that keeps activations [B, ...] in rows."""
    sharding = NamedSharding(mesh, P(ROWS))
    return lambda x: jax.lax.with_sharding_constraint(x, sharding)


def gathered(sharding: NamedSharding) -> NamedSharding:
    """Returns the sharding, without the axes of rows, in which a parameter is used and not stored.

    XLA finds it for matrix products, but not for the embedding lookup.
    """
    used = [None if axis in ROWS else axis for axis in sharding.spec]
    return NamedSharding(sharding.mesh, P(*used))
