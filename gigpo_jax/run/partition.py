"""The device mesh, the shardings of parameters and batches, and the exchange between hosts.

Mesh axes: `data` (rows split, parameters replicated), `fsdp` (rows and parameters split), `tensor` (heads, MLP and
vocabulary split). The model names the logical axes of its parameters; `RULES` maps them to mesh axes.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from gigpo_jax.errors import InputError
from gigpo_jax.models.vision import Images
from gigpo_jax.models.vision_config import MERGE

LOST_S = 50  # without a sign of life of a host the others end
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
    "patch": None,
    "rank": None,
    "value": None,
}


def make_mesh(
    data: int = -1, fsdp: int = 1, tensor: int = 1, *, devices: Sequence[jax.Device] | None = None, others: int = 0
) -> Mesh:
    """Arranges the devices of all hosts.

    Args:
      data, fsdp, tensor: devices along each axis; one of them can be -1 for all that are left. Those of `tensor` must
        be on one host.
      devices: default: all.
      others: `engine.devices`, which are not among them.

    Raises:
      InputError: the sizes do not fit the devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    bad = [f"config.mesh.{name}={size}" for name, size in sizes.items() if size == 0 or size < -1]
    if bad:
        raise InputError(f"{bad[0]}: must be at least 1, or -1 for all devices that are left")
    free = [name for name, size in sizes.items() if size == -1]
    given = int(np.prod([size for size in sizes.values() if size != -1]))
    asked = " x ".join(f"{name}={size}" for name, size in sizes.items())
    if len(free) > 1:
        raise InputError(f"config.mesh: {asked}: only one axis can be -1")
    if len(devices) % given or (not free and given != len(devices)):
        left = f" (engine.devices={others} of each host are not in the mesh)" if others else ""
        raise InputError(
            f"config.mesh: {asked} does not fit {len(devices)} devices{left}; the product must be {len(devices)} "
            "(-1 in one axis takes all that are left)"
        )
    shape = tuple(len(devices) // given if size == -1 else size for size in sizes.values())
    try:
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except AssertionError:
        if not others:
            raise
        # The TPU chips that `engine.devices` leaves need not be a block.
        grid = np.array(devices).reshape(shape)
    if any(len({d.process_index for d in group}) > 1 for group in grid.reshape(-1, shape[2])):
        raise InputError(f"config.mesh.tensor={shape[2]}: its devices must be on one host; make it smaller")
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def split_devices(
    config: ConfigDict, devices: Sequence[jax.Device] | None = None
) -> tuple[list[jax.Device], list[jax.Device]]:
    """The devices of all hosts that train, and those of this host for the engine alone: its last `engine.devices`.

    Raises:
      InputError: none would be left to train, or they are TPUs of several hosts.
    """
    own, devices = config.engine.devices, list(jax.devices() if devices is None else devices)
    hosts: dict[int, list[jax.Device]] = {}
    for device in devices:
        hosts.setdefault(device.process_index, []).append(device)
    fewest = min(map(len, hosts.values()))
    if own >= fewest:
        raise InputError(f"config.engine.devices={own}: a host has {fewest} devices, and one at least must train")
    if own and len(hosts) > 1 and devices[0].platform == "tpu":
        raise InputError(
            f"config.engine.devices={own}: XLA's compiler fails for most subsets of the TPUs of several hosts; use 0"
        )
    engines = {host: each[len(each) - own :] for host, each in hosts.items()}
    return [x for x in devices if x not in engines[x.process_index]], engines[jax.process_index()]


def learner_mesh(config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arranges the devices that train, as `make_mesh`; raises as that and `split_devices`."""
    return make_mesh(**config.mesh, devices=split_devices(config, devices)[0], others=config.engine.devices)


def connect_hosts() -> None:
    """Connects the hosts of a run, before any other use of jax.

    On clusters that jax does not detect (it does TPU pods, Slurm and others), the environment variables
    JAX_COORDINATOR_ADDRESS (host:port), JAX_NUM_PROCESSES and JAX_PROCESS_ID are needed.

    Raises:
      InputError: the hosts do not find each other.
    """
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    address, *numbers = (os.environ.get(name) for name in names)
    count, number = (None if value is None else int(value) for value in numbers)
    try:
        jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM; see run/hosts.py
        jax.distributed.initialize(
            address,
            count,
            number,
            initialization_timeout=300,
            heartbeat_timeout_seconds=LOST_S,
            shutdown_timeout_seconds=LOST_S,
        )
    except (RuntimeError, ValueError) as err:
        found = ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in names)
        reason = (str(err).splitlines() or [""])[0]
        raise InputError(f"config.distributed=True: {reason} ({found}); set all three, on every host") from err


def local_rows(mesh: Mesh, rows: int) -> int:
    """This host's share of the B rows of a microbatch.

    Raises:
      InputError: they cannot be split evenly.
    """
    shards = int(np.prod([mesh.shape[axis] for axis in ROWS]))
    if rows % shards:
        raise InputError(
            f"config.batch.rows={rows}: must be a multiple of mesh.data x mesh.fsdp = {shards}, such as "
            f"{-(-rows // shards) * shards}"
        )
    return rows * len(mesh.local_devices) // mesh.size


def param_shardings(mesh: Mesh, logical_axes: Any, shapes: Any) -> tuple[Any, list[str]]:
    """The sharding of every parameter by `RULES`.

    Args:
      mesh: as from `make_mesh`.
      logical_axes: a tree whose leaves are tuples of axis names.
      shapes: the parameters, or their shapes, in a tree like it.

    Returns:
      A tree of `NamedSharding`, and a line for every axis that is replicated as it does not divide evenly.
    """
    notes: list[str] = []

    def place(path: tuple, leaf: Any, axes: tuple[str, ...]) -> NamedSharding:
        spec: list[str | None] = []
        for name, size in zip(axes, leaf.shape, strict=True):
            axis = RULES[name]
            if axis is not None and (axis in spec or size % mesh.shape[axis]):
                where = jax.tree_util.keystr(path)
                notes.append(f"{where}: axis {name} of {size} is repeated, not split over {axis}={mesh.shape[axis]}")
                axis = None
            spec.append(axis)
        return NamedSharding(mesh, P(*spec))

    return jax.tree_util.tree_map_with_path(place, shapes, logical_axes), notes


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of a value that every device holds whole."""
    return NamedSharding(mesh, P())


def row_constraint(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """A function that keeps [B, ...] activations split by rows; for `qwen2.Execution.constrain`."""
    sharding = NamedSharding(mesh, P(ROWS))
    return lambda x: jax.lax.with_sharding_constraint(x, sharding)


def on_each_device(mesh: Mesh, attend: Callable[..., jax.Array], kv_heads: int) -> Callable[..., jax.Array]:
    """An attention like `attend`, which then sees the rows of one device, and its heads where `tensor` divides them.

    Args:
      mesh: as from `make_mesh`.
      attend: (query [B, T, H, K], key [B, T, G, K], value [B, T, G, K], segment_ids [B, T], **options) -> [B, T, H, K].
      kv_heads: G.
    """
    heads = P(ROWS, None, "tensor" if kv_heads % mesh.shape["tensor"] == 0 else None)

    def run(*arrays: jax.Array, **options: Any) -> jax.Array:
        return jax.shard_map(
            partial(attend, **options),
            mesh=mesh,
            in_specs=(heads, heads, heads, P(ROWS)),
            out_specs=heads,
            check_vma=False,
        )(*arrays)

    return run


def gathered(sharding: NamedSharding) -> NamedSharding:
    """A parameter's sharding without the axes of rows: how it is used, not how it is stored.

    XLA finds it for matrix products, but not for the embedding lookup, whose result and gradient it would replicate.
    """
    return NamedSharding(sharding.mesh, P(*(None if axis in ROWS else axis for axis in sharding.spec)))


def global_batch(mesh: Mesh, batch: Any) -> Any:
    """Joins the hosts' minibatches to global arrays [M, B, ...], split by rows.

    Args:
      mesh: as from `make_mesh`.
      batch: a pytree of numpy arrays [M, B of this host, ...] and scalars that are equal on all hosts; the images in
        it are numbered on this host.
    """
    images = getattr(batch, "images", None)
    if images is not None:
        batch = replace(batch, images=replace(images, index=_numbered(mesh, images)))
    rows, whole = NamedSharding(mesh, P(None, ROWS)), replicated(mesh)

    def put(x: Any) -> jax.Array:
        x = np.asarray(x)
        if x.ndim == 0:
            return jax.make_array_from_process_local_data(whole, x, ())
        return jax.make_array_from_process_local_data(rows, x)

    return jax.tree.map(put, batch)


def _numbered(mesh: Mesh, images: Images) -> np.ndarray:
    """The index of images whose features are counted over all hosts."""
    here = images.patches.shape[1]
    number, size = here * mesh.size // len(mesh.local_devices), images.patches.shape[2] // MERGE**2
    places = NamedSharding(mesh, P(ROWS)).addressable_devices_indices_map((number,)).values()
    mine = sorted({n for place in places if place for n in range(*place[0].indices(number))})
    first = np.array(mine, np.int32) * size  # feature of each of this host's images
    return np.where(images.index < 0, -1, first[images.index // size] + images.index % size)


def all_hosts(values: np.ndarray) -> np.ndarray:
    """Gathers a small array of every host: [k] -> [hosts, k]. All hosts must call it, in the same order."""
    if jax.process_count() == 1:
        return values[None]
    return np.asarray(multihost_utils.process_allgather(values, tiled=False))


def all_rows(rows: np.ndarray) -> np.ndarray:
    """Joins the rows of all hosts, in host order: [k of this host, ...] of 32 or 64 bits -> [sum of the k, ...]."""
    if jax.process_count() == 1:
        return rows
    counts = all_hosts(np.array([len(rows)], np.int32))[:, 0]
    padded = np.zeros((int(counts.max()), *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    gathered = all_hosts(padded.view(np.uint32)).view(rows.dtype)  # as bits: JAX would round 64-bit numbers
    return np.concatenate([part[:count] for part, count in zip(gathered, counts, strict=True)])
