"""The grid of a mesh of several devices."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils

from gigpo_jax.core.errors import InputError


def arrange_devices(
    devices: Sequence[jax.Device], sizes: Mapping[str, int], engine_devices: int
) -> np.ndarray:
    """Arranges devices in a grid [data, fsdp, tensor]; arguments as for `mesh.make_mesh`.

    Raises:
      InputError: the sizes do not fit the devices.
    """
    for name, size in sizes.items():
        if size == 0 or size < -1:
            raise InputError(
                "must be at least 1, or -1 for all devices that are left",
                key=f"config.mesh.{name}",
                value=size,
            )
    free_axes = [name for name, size in sizes.items() if size == -1]
    fixed = int(np.prod([size for size in sizes.values() if size != -1]))
    product = " x ".join(f"{name}={size}" for name, size in sizes.items())
    if len(free_axes) > 1:
        raise InputError(f"only one axis can be -1, not {product}", key="config.mesh")
    # Without a free axis devices would stand idle, so the product must be exact.
    if len(devices) % fixed or (not free_axes and fixed != len(devices)):
        reserved = ""
        if engine_devices:
            reserved = f" (engine.devices={engine_devices} of each host are not in the mesh)"
        raise InputError(
            f"{product} does not fit {len(devices)} devices{reserved}",
            key="config.mesh",
            fix=f"make the product {len(devices)} (-1 in one axis takes all that are left)",
        )
    shape = tuple(len(devices) // fixed if size == -1 else size for size in sizes.values())
    try:
        # It arranges TPUs by their links: neighbours in the mesh are neighbours in the torus.
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except AssertionError:
        if not engine_devices:
            raise
        # The TPU chips that `engine.devices` leaves need not be a block.
        grid = np.array(devices).reshape(shape)
    # The engine of a host takes its weights from the host's devices, which must hold all parts.
    for row in grid.reshape(-1, shape[2]):
        if len({device.process_index for device in row}) > 1:
            raise InputError(
                "its devices must be on one host",
                key="config.mesh.tensor",
                value=shape[2],
                fix="make it smaller",
            )
    return grid
