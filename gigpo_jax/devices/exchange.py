"""The exchange between hosts: connection, global batches, small arrays of every host."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import ROWS, replicated

if TYPE_CHECKING:
    from gigpo_jax.models.vision.vision import Images

WAIT_S = 0.005  # time between two looks at a result of the device
LOST_S = 50  # hosts end when another one gives no sign of life for so many seconds


def connect_hosts() -> None:
    """Connects the hosts of a run.

    It comes before any other use of jax. On clusters that jax does not detect (it detects TPU pods,
    Slurm and others), the environment variables JAX_COORDINATOR_ADDRESS (host:port),
    JAX_NUM_PROCESSES and JAX_PROCESS_ID are needed.

    Raises:
      InputError: the hosts do not find each other.
    """
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    # None where a variable is not set: jax then asks the cluster.
    address, *numbers = (os.environ.get(name) for name in names)
    count, index = (None if value is None else int(value) for value in numbers)
    try:
        # jax's preemption service would take SIGTERM, which run/hosts.py handles.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(
            address,
            count,
            index,
            initialization_timeout=300,
            # A host that is lost leaves the others with occupied devices for this time. jax's
            # default is 100 s.
            heartbeat_timeout_seconds=LOST_S,
            # At the end hosts wait for each other. jax's default is 300 s.
            shutdown_timeout_seconds=LOST_S,
        )
    except (RuntimeError, ValueError) as err:
        variables = ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in names)
        reason = (str(err).splitlines() or [""])[0]
        raise InputError(
            f"{reason} ({variables})",
            key="config.distributed",
            value="True",
            fix="set all three, on every host",
        ) from err


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
    """Waits for arrays of the device, and handles signals, which a wait in jax would not."""
    arrays: list[Any] = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
    for array in arrays:
        while not array.is_ready():
            time.sleep(WAIT_S)


def global_batch(mesh: Mesh, batch: Any) -> Any:
    """Joins the hosts' minibatches to global arrays, [M, B, ...], split by rows.

    Args:
      mesh: Mesh of the learner.
      batch: Pytree of numpy arrays [M, B of this host, ...] and of scalars that are equal on all
        hosts; its images are numbered on this host.
    """
    images = getattr(batch, "images", None)
    if images is not None:
        # An image's number on this host is not its number in the joined array.
        batch = replace(batch, images=replace(images, index=_global_image_index(mesh, images)))
    row_sharding = NamedSharding(mesh, P(None, ROWS))
    scalar_sharding = replicated(mesh)

    def join(value: Any) -> jax.Array:
        array = np.asarray(value)
        # A scalar has no rows to split; every host passes the same one.
        if array.ndim == 0:
            return jax.make_array_from_process_local_data(scalar_sharding, array, ())
        return jax.make_array_from_process_local_data(row_sharding, array)

    return jax.tree.map(join, batch)


def _global_image_index(mesh: Mesh, images: "Images") -> np.ndarray:
    """Returns each patch's feature index over all hosts' images."""
    from gigpo_jax.models.vision.vision_config import MERGE

    # Patches are [M, N of this host, P, 588].
    local_count = images.patches.shape[1]
    image_count = local_count * mesh.size // len(mesh.local_devices)
    features = images.patches.shape[2] // MERGE**2  # of one image
    sharding = NamedSharding(mesh, P(ROWS))
    # The global numbers of this host's images: the mesh decides, and they need not be contiguous.
    slices = sharding.addressable_devices_indices_map((image_count,)).values()
    local_images: set[int] = set()
    for device_slice in slices:
        if device_slice:
            local_images |= {*range(*device_slice[0].indices(image_count))}
    first_feature = np.array(sorted(local_images), np.int32) * features
    image, feature = np.divmod(images.index, features)
    # -1 marks a token that is no part of an image.
    return np.where(images.index < 0, -1, first_feature[image] + feature)


def all_hosts(values: np.ndarray) -> np.ndarray:
    """Gathers every host's small array, [k] -> [hosts, k]; all hosts call it in the same order."""
    if jax.process_count() == 1:
        return values[None]
    # A collective on the devices: it waits for all hosts, without a limit of its own
    # (run/hosts.py).
    return np.asarray(multihost_utils.process_allgather(values, tiled=False))


def all_rows(rows: np.ndarray) -> np.ndarray:
    """Joins the rows of all hosts, in host order.

    Args:
      rows: [k of this host, ...] of 32 or 64 bits, or bool.

    Returns:
      [sum of the k, ...], of the same dtype.
    """
    if jax.process_count() == 1:
        return rows
    if rows.dtype == np.bool_:
        return all_rows(rows.astype(np.uint32)) != 0
    # An exchange needs one shape on all hosts: their counts come first, then rows that are padded
    # to the largest.
    counts = all_hosts(np.array([len(rows)], np.int32))[:, 0]
    padded = np.zeros((int(counts.max()), *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    # JAX would round 64-bit numbers, so hosts exchange bits.
    host_rows = all_hosts(padded.view(np.uint32)).view(rows.dtype)
    return np.concatenate([block[:count] for block, count in zip(host_rows, counts, strict=True)])


def all_records(
    records: Sequence[dict[str, Any]], join: Callable[[np.ndarray], np.ndarray] = all_rows
) -> list[dict[str, Any]]:
    """Joins JSON records of all hosts, in host order.

    Args:
      records: Records of this host.
      join: Function that joins the rows of all hosts.
    """
    # ASCII without line ends, which JSON escapes: one record a line.
    text = "".join(json.dumps(record) + "\n" for record in records).encode("ascii")
    # Rows are words of 32 bits. Spaces before a record are part of JSON.
    words = np.frombuffer(text + b" " * (-len(text) % 4), np.uint32)
    return [json.loads(line) for line in join(words).tobytes().split(b"\n") if line.strip()]
