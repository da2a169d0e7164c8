"""Where the arrays of an engine are: slots spread over the devices of this host, heads over `tensor`.

The learner's mesh spans all hosts and splits parameters over `fsdp`. The engine of a host has a mesh of its own devices
with the axes `slots` and `tensor`, which may be longer than the learner's. Every part of `slots` has whole weights, so
no part waits for another. Devices of the engine alone are other ones than the learner's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from gigpo_jax.models import qwen2
from gigpo_jax.models.attention import kernels_for
from gigpo_jax.models.cache import memory_order

SLOTS, TENSOR = "slots", "tensor"


@dataclass(frozen=True)
class Placement:
    """The devices of an engine.

    Attributes:
      mesh: its devices [slots, tensor]; None: one device.
      device: that one, or one of the mesh.
      hosts: the learner's devices of all hosts [slots, tensor]; None: one device.
      own: whether the engine's devices are other ones than the learner's.
    """

    mesh: Mesh | None
    device: jax.Device
    hosts: Mesh | None = None
    own: bool = False

    @property
    def parts(self) -> int:
        """Equal parts of the slots, each on devices of its own."""
        return 1 if self.mesh is None else self.mesh.shape[SLOTS]

    def sharding(self, *axes: str | None) -> NamedSharding | None:
        """The sharding of an array by the axes of its dimensions; None on one device."""
        return None if self.mesh is None else NamedSharding(self.mesh, P(*axes))

    @property
    def cache(self) -> Any:
        """The sharding of a KV cache [L, S, G, C, K], and on TPUs its order in memory."""
        where = self.sharding(None, SLOTS, TENSOR)
        if self.device.platform != "tpu":
            return where
        return Format(memory_order(5), where or SingleDeviceSharding(self.device))

    @property
    def kernels(self) -> str:
        """The attention kernels that a part can use; XLA splits only its own over `tensor`."""
        return "cpu" if self.split else kernels_for(self.device)

    @property
    def split(self) -> bool:
        """Whether a part has several devices, over which the compiler splits its work."""
        return self.mesh is not None and self.mesh.shape[TENSOR] > 1

    def spread(self, function: Callable[..., Any], result: Sequence[str | None]) -> Callable[..., Any]:
        """Applies a function to every part by itself: its loops end when the slots of the part are done.

        Args:
          function: (params, cache, slots, message) -> (cache, slots, result). A part counts its slots from 0 and gets
            an equal piece of the message, by the first axis. Over `tensor` the compiler splits the work.
          result: the axes of the result.
        """
        if self.mesh is None:
            return function
        cache, slots = P(None, SLOTS), P(SLOTS)
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(P(), cache, slots, slots),
            out_specs=(cache, slots, P(*result)),
            axis_names={SLOTS}
            if self.split
            else {SLOTS, TENSOR},  # kernels refuse an axis that is left to the compiler
            check_vma=False,
        )

    def whole(self, x: jax.Array) -> jax.Array:
        """Inside a part: an array that all its devices hold, not split over `tensor`."""
        return jax.lax.with_sharding_constraint(x, P(*[None] * x.ndim)) if self.split else x

    def gathered(self, leaf: Any) -> NamedSharding | None:
        """The sharding of a parameter for decoding, over the learner's devices; None on one device."""
        return NamedSharding(self.hosts, self._split(leaf)) if self.hosts is not None and _sharded(leaf) else None

    def of_gathered(self, leaf: Any) -> NamedSharding | None:
        """The sharding of a gathered parameter on this host's devices, None on one device."""
        return self.sharding(*self._split(leaf))

    def _copied(self, leaf: jax.Array) -> jax.Array:
        where = self.of_gathered(leaf) if _sharded(leaf) else self.sharding()
        assert where is not None
        shards = {str(shard.index): shard.data for shard in leaf.addressable_shards}
        places = where.addressable_devices_indices_map(leaf.shape).items()
        copies = [jax.device_put(shards[str(index)], device) for device, index in places]
        return jax.make_array_from_single_device_arrays(leaf.shape, where, copies)

    def _split(self, leaf: Any) -> P:
        """Which dimensions of a gathered parameter are split."""
        devices = 1 if self.mesh is None else self.mesh.shape[TENSOR]
        spec = zip(leaf.shape, leaf.sharding.spec)
        return P(*(axis if axis == TENSOR and size % devices == 0 else None for size, axis in spec))

    def local(self, leaf: jax.Array) -> jax.Array:
        """This host's shards of a gathered parameter as an array of its own, copied only to other devices."""
        if self.own:
            return self._copied(leaf)
        if not _sharded(leaf):
            return leaf
        where = self.of_gathered(leaf)
        if where is None:
            return leaf.addressable_data(0)
        shards = [shard.data for shard in leaf.addressable_shards]
        return jax.make_array_from_single_device_arrays(leaf.shape, where, shards)


def mesh_of(params: qwen2.Params) -> Mesh | None:
    """The mesh that parameters are sharded over, None if they are on one device."""
    return next((leaf.sharding.mesh for leaf in jax.tree.leaves(params) if _sharded(leaf)), None)


def placement_of(params: qwen2.Params, tensor: int = 1, own: Sequence[jax.Device] = ()) -> Placement:
    """The devices of this host that parameters are on, or those of the engine alone.

    Args:
      params: the learner's.
      tensor: devices that split the engine's weights; at least those that split the learner's.
      own: of this host, which hold none of the parameters; empty: the engine has no devices of its own.
    """
    mesh = mesh_of(params)
    tensor = max(tensor, 1 if mesh is None else mesh.shape[TENSOR])
    hosts = None if mesh is None else _over(mesh.devices.reshape(-1, tensor))  # `tensor` is the mesh's last axis
    if own:
        return Placement(_over(np.array(own).reshape(-1, tensor)), own[0], hosts, own=True)
    if hosts is None:
        sharding = getattr(jax.tree.leaves(params)[0], "sharding", None)  # numpy arrays have none
        return Placement(None, next(iter(sharding.device_set)) if sharding else jax.local_devices()[0])
    mine = np.array([row for row in hosts.devices if row[0].process_index == jax.process_index()])
    return Placement(_over(mine) if mine.size > 1 else None, mine.flat[0], hosts)


def _over(devices: np.ndarray) -> Mesh:
    return Mesh(devices, (SLOTS, TENSOR), axis_types=(AxisType.Auto,) * 2)


def gather(leaves: Sequence[jax.Array], dtype: Any) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    """A function that casts such parameters; their parts are cast before they are sent to other devices."""
    where = [leaf.sharding if _sharded(leaf) else None for leaf in leaves]

    def cast(leaves: Sequence[jax.Array]) -> list[jax.Array]:
        narrow = [leaf.astype(dtype) for leaf in leaves]
        return [
            x if at is None else jax.lax.with_sharding_constraint(x, at) for x, at in zip(narrow, where, strict=True)
        ]

    return cast


def _sharded(leaf: Any) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return isinstance(sharding, NamedSharding) and sharding.mesh.size > 1
