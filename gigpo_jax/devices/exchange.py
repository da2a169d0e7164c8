"""The exchange between hosts: global batches, small arrays of every host."""

import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import ROWS, replicated

WAIT_S = 0.005  # time between two looks at a result of the device


def local_rows(mesh: Mesh, rows: int) -> int:
    """This host's share of the B rows of a microbatch.

    Raises:
      InputError: the rows cannot be split evenly.
    """
    shards = int(np.prod([mesh.shape[axis] for axis in ROWS]))
    if rows % shards:
        raise InputError(
            f"must be a multiple of mesh.data x mesh.fsdp = {shards}, such as "
            f"{-(-rows // shards) * shards}",
            key="config.batch.rows",
            value=rows,
        )
    return rows * len(mesh.local_devices) // mesh.size


def wait_for(result: Any) -> None:
    """Waits for arrays of the device, and handles interrupts, which a wait in jax would not."""
    arrays: list[Any] = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
    for array in arrays:
        while not array.is_ready():
            time.sleep(WAIT_S)


def global_batch(mesh: Mesh, batch: Any) -> Any:
    """Joins the hosts' minibatches to global arrays, [M, B, ...], split by rows.

    `batch` is a pytree of numpy arrays [M, B of this host, ...] and of scalars that are equal on
    all hosts; its images are numbered on this host.
    """
    images = getattr(batch, "images", None)
    if images is not None:
        # An image's number on this host is not its number in the joined array.
        from gigpo_jax.devices.image_index import global_image_index

        batch = replace(batch, images=replace(images, index=global_image_index(mesh, images)))
    row_sharding = NamedSharding(mesh, P(None, ROWS))
    scalar_sharding = replicated(mesh)

    def join(value: Any) -> jax.Array:
        array = np.asarray(value)
        # A scalar has no rows to split; every host passes the same one.
        if array.ndim == 0:
            return jax.make_array_from_process_local_data(scalar_sharding, array, ())
        return jax.make_array_from_process_local_data(row_sharding, array)

    return jax.tree.map(join, batch)


def all_hosts(values: np.ndarray) -> np.ndarray:
    """Gathers every host's small array, [k] -> [hosts, k]; all hosts call it in the same order."""
    if jax.process_count() == 1:
        return values[None]
    # A collective on the devices: it waits for all hosts, without a limit of its own
    # (run/host_votes.py).
    return np.asarray(multihost_utils.process_allgather(values, tiled=False))


def all_rows(rows: np.ndarray) -> np.ndarray:
    """Joins the rows of all hosts, [k, ...] of 32 or 64 bits or bool each, in host order."""
    if jax.process_count() == 1:
        return rows
    from gigpo_jax.devices.row_exchange import join_rows

    return join_rows(rows, all_hosts)
