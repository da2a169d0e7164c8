"""The config of a learner's engine server, and the devices that split its weights."""

from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from gigpo_jax.devices.engine_split import possible_tensors
from gigpo_jax.devices.memory import (
    LEARNER,
    memory_estimate,
    peak,
    smallest_device_bytes,
)
from gigpo_jax.devices.mesh import learner_mesh
from gigpo_jax.models.decoder_config import DecoderConfig


def server_config(
    config: ConfigDict,
    shape: DecoderConfig,
    devices: Sequence[jax.Device] | None = None,
    limit: int | None = None,
) -> ConfigDict:
    """The config of a learner's engine server.

    Args:
      config: Resolved config.
      shape: Shape of the model.
      devices: Devices of the server; None: all of this process.
      limit: Bytes of one device; None: what the devices report.
    """
    config = config.copy_and_resolve_references()
    # Nothing is trained: weights have the engine's dtype, and no rollout waits for an update.
    config.engine.name = "jax"
    config.engine.devices = 0
    config.train.max_staleness = 0
    config.model.param_dtype = config.engine.dtype
    # The weights are loaded in the places that the engine reads them from. Split otherwise, they
    # would be in memory beside the engine's copy of them, with an adapter all the time.
    config.mesh.update({"data": -1, "fsdp": 1})
    config.mesh.tensor = server_tensor(config, shape, learner_mesh(config, devices), limit)
    return config


def server_tensor(
    config: ConfigDict, shape: DecoderConfig, mesh: jax.sharding.Mesh, limit: int | None = None
) -> int:
    """Returns how many devices split an engine server's weights; see `engine_split_size`.

    A server loads its weights split as the engine reads them, and holds them once.
    """
    platform = mesh.devices.flat[0].platform
    limit = limit or smallest_device_bytes()
    config = config.copy_and_resolve_references()
    possible = possible_tensors(config, shape, mesh)
    tensor = config.engine.tensor or mesh.shape["tensor"]
    # Where none fits, `check_memory` refuses the last one.
    for tensor in [] if config.engine.tensor else possible:
        config.mesh.update({"data": -1, "fsdp": 1, "tensor": tensor})
        estimate = memory_estimate(config, shape, mesh.size, tensor=tensor, platform=platform)
        if limit is None or peak(config, estimate | dict.fromkeys(LEARNER, 0.0)) <= limit:
            break
    return tensor
