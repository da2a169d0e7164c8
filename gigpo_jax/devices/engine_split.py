"""The devices that split an engine's weights: how many, and whether they can."""

from collections.abc import Mapping

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.memory import (
    NO_SIGNALS,
    largest_estimate,
    peak,
    smallest_device_bytes,
)
from gigpo_jax.models.decoder import DecoderConfig


def engine_split_size(
    config: ConfigDict,
    shape: DecoderConfig,
    mesh: jax.sharding.Mesh,
    limit: int | None = None,
    signals: Mapping[str, int] = NO_SIGNALS,
    *,
    trains: bool = True,
) -> int:
    """Returns `engine.tensor` or, if it is 0, the fewest devices that hold the split weights.

    Args:
      config, shape, signals: Arguments of `memory_estimate`.
      mesh: Mesh of the learner.
      limit, trains: Arguments of `check_memory`.
    """
    smallest = mesh.shape["tensor"]
    chosen = config.engine.tensor
    if chosen or config.engine.name != "jax" or _sends_overlap(config, mesh):
        return chosen or smallest
    platform = mesh.devices.flat[0].platform
    limit = limit or smallest_device_bytes()
    hosts = mesh.size // _host_devices(mesh)
    # Ascending: devices that do not share weights do not wait for each other, so the smallest is
    # fastest.
    for tensor in possible_tensors(config, shape, mesh):
        estimate = largest_estimate(
            config, shape, mesh.size, hosts, tensor, platform, signals, trains
        )
        if limit is None or peak(config, estimate) <= limit:
            return tensor
    # None fits: `check_memory` then refuses the run, with the estimate.
    return smallest


def check_engine(
    config: ConfigDict, shape: DecoderConfig, mesh: jax.sharding.Mesh, tensor: int
) -> None:
    """Refuses a mesh over which the in-process engine cannot spread its heads and slots.

    Args:
      config, shape: Arguments of `memory_estimate`.
      mesh: Mesh of the learner.
      tensor: Result of `engine_split_size`.

    Raises:
      InputError: `tensor` does not divide heads and devices or cannot overlap with updates, or a
        host's devices do not divide the slots.
    """
    heads = shape.num_kv_heads
    own_devices = config.engine.devices
    key = "engine.tensor" if config.engine.tensor else "mesh.tensor"
    # The engine's own devices hold whole copies of the weights only.
    if own_devices % tensor:
        raise InputError(
            f"must be a multiple of {key}={tensor}", key="config.engine.devices", value=own_devices
        )
    possible = possible_tensors(config, shape, mesh)
    if tensor not in possible:
        fix = "make mesh.tensor smaller"
        if possible:
            fix = f"use one of {', '.join(map(str, possible))}"
        raise InputError(
            f"the engine splits {heads} key/value heads evenly over devices that are neighbours "
            "in the mesh and on one host",
            key=f"config.{key}",
            value=tensor,
            fix=fix,
        )
    # Two programs that both send may start in another order on each device; each would then wait
    # for the other for ever.
    if tensor > 1 and _sends_overlap(config, mesh):
        raise InputError(
            f"with {key}={tensor} rollout and update both send between devices and could wait "
            "for each other",
            key="config.train.max_staleness",
            value=config.train.max_staleness,
            fix=f"use 0, or {key}=1, or engine.devices on one host",
        )
    slots = config.engine.slots
    slot_groups = (own_devices or _host_devices(mesh)) // tensor
    # One program decodes on all of them, so each has as many slots.
    if slots % slot_groups:
        raise InputError(
            f"a host spreads them over {slot_groups} parts of its devices (engine.tensor: "
            f"{tensor} in a part)",
            key="config.engine.slots",
            value=slots,
            fix=f"use a multiple, such as {-(-slots // slot_groups) * slot_groups}",
        )


def _sends_overlap(config: ConfigDict, mesh: jax.sharding.Mesh) -> bool:
    """Tests whether rollouts run on the devices that an update sends over at the same time.

    With several hosts the update may send over all of their devices.
    """
    shared = not config.engine.devices or _host_devices(mesh) < mesh.size
    return shared and config.train.max_staleness > 0


def possible_tensors(
    config: ConfigDict, shape: DecoderConfig, mesh: jax.sharding.Mesh
) -> list[int]:
    """Returns the numbers of devices of a host that can split an engine's weights, ascending.

    They divide the heads and the devices; see `engine_devices.place_engine`.
    """
    smallest = mesh.shape["tensor"]
    host_devices = _host_devices(mesh)
    device_hosts = np.array([device.process_index for device in mesh.devices.flat])
    tensors = []
    # Multiples of `mesh.tensor`: the weights arrive split in this way, and are split further.
    for tensor in range(smallest, shape.num_kv_heads + 1, smallest):
        if shape.num_kv_heads % tensor or host_devices % tensor or config.engine.devices % tensor:
            continue
        # The hosts of each group of neighbours: equal if largest - smallest is 0.
        if np.all(np.ptp(device_hosts.reshape(-1, tensor), axis=1) == 0):
            tensors.append(tensor)
    return tensors


def _host_devices(mesh: jax.sharding.Mesh) -> int:
    return sum(device.process_index == jax.process_index() for device in mesh.devices.flat)
