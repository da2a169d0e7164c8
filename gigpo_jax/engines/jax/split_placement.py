"""Placement of an engine on several devices: slots spread over a host's, heads over `tensor`.

The learner's mesh spans all hosts and splits parameters over `fsdp`. The engine of a host has a
mesh of its own devices with the axes `slots` and `tensor`, which may be longer than the learner's.
Every partition of the slots has whole weights, so no partition waits for another. Devices that are
reserved for the engine are not among the learner's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gigpo_jax.engines.jax.placement import SLOTS, TENSOR, Placement, is_sharded
from gigpo_jax.models.execution import Experts
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.experts import sum_over_devices


@dataclass(frozen=True)
class SplitPlacement(Placement):
    """The devices of an engine whose parameters are sharded, or which has its own devices.

    Attributes:
      mesh: Devices of the engine [slots, tensor]; None: one device.
      learner_mesh: Devices of the learner on all hosts [slots, tensor]; None: one device.
      reserved: Whether the engine's devices are not among the learner's.
    """

    mesh: Mesh | None = None
    learner_mesh: Mesh | None = None
    reserved: bool = False

    @property
    def is_one_device(self) -> bool:
        """Whether parameters are used as they are, on the device that holds them."""
        return False

    @property
    def partitions(self) -> int:
        """Number of equal partitions of the slots, each of which has its own devices."""
        if self.mesh is None:
            return 1
        return self.mesh.shape[SLOTS]

    @property
    def partition_devices(self) -> int:
        """Number of devices of a partition, over which the compiler splits its work."""
        if self.mesh is None:
            return 1
        return self.mesh.shape[TENSOR]

    def experts(self, experts: ExpertConfig | None) -> Experts | None:
        """Makes the function for a model's experts; each device has its own, if they divide."""
        apply = super().experts(experts)
        devices = self.partition_devices
        if experts is None or apply is None or devices == 1 or experts.count % devices:
            return apply

        def apply_split(*arrays: jax.Array) -> jax.Array:
            # Inside `map_partitions`, whose mesh this uses: the other axis is manual there already.
            return jax.shard_map(
                sum_over_devices(apply, TENSOR),
                in_specs=(P(), P(), P(), P(TENSOR), P(TENSOR), P(TENSOR)),
                out_specs=P(),
                axis_names={TENSOR},
                check_vma=False,
            )(*arrays)

        return apply_split

    def sharding(self, *axes: str | None) -> NamedSharding | None:
        """Returns the sharding of an array by its dimensions' axes, or None on one device."""
        return None if self.mesh is None else NamedSharding(self.mesh, P(*axes))

    def map_partitions(
        self, function: Callable[..., Any], result_axes: Sequence[str | None]
    ) -> Callable[..., Any]:
        """Applies a function to every partition separately.

        Its loops then end when the slots of the partition are done. Over `tensor` the compiler
        splits the work.

        Args:
          function: (params, cache, slots, message) -> (cache, slots, result). A partition counts
            its slots from 0 and gets an equal piece of the message, by the first axis.
          result_axes: Mesh axes of the result's dimensions.
        """
        if self.mesh is None:
            return function
        cache = P(None, SLOTS)
        # Prefix specs: all arrays of the state, and those of the message, are split by rows. The
        # parameters, P(), are whole in every partition.
        slots = P(SLOTS)
        # Kernels refuse an axis that is left to the compiler, even one of length 1.
        manual_axes = {SLOTS} if self.partition_devices > 1 else {SLOTS, TENSOR}
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(P(), cache, slots, slots),
            out_specs=(cache, slots, P(*result_axes)),
            axis_names=manual_axes,
            check_vma=False,
        )

    def replicate(self, x: jax.Array) -> jax.Array:
        """Gathers an array on all devices of a partition, so that it is not split over `tensor`.

        It must be called inside a partition.
        """
        # Nothing to gather; on one device there is no mesh either that a constraint could refer to.
        if self.partition_devices == 1:
            return x
        return jax.lax.with_sharding_constraint(x, P(*[None] * x.ndim))

    def gathered_sharding(self, leaf: Any) -> NamedSharding | None:
        """Returns a parameter's sharding for decoding on the learner's devices; None on one."""
        if self.learner_mesh is None or not is_sharded(leaf):
            return None
        return NamedSharding(self.learner_mesh, self._tensor_spec(leaf))

    def local_sharding(self, leaf: Any) -> NamedSharding | None:
        """Returns a gathered parameter's sharding on this host's devices, None on one device."""
        return self.sharding(*self._tensor_spec(leaf))

    def localize(self, leaf: jax.Array) -> jax.Array:
        """Makes an array of this host's shards of a gathered parameter.

        Shards are copied only to reserved devices.
        """
        if self.reserved:
            return self._copy_to_reserved(leaf)
        if not is_sharded(leaf):
            return leaf
        sharding = self.local_sharding(leaf)
        if sharding is None:
            return leaf.addressable_data(0)
        # The gathered parameter has a whole copy on the `tensor` devices of each partition. The new
        # array refers to the same buffers, without the shards of other hosts.
        shards = [shard.data for shard in leaf.addressable_shards]
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)

    def _copy_to_reserved(self, leaf: jax.Array) -> jax.Array:
        sharding = self.local_sharding(leaf) if is_sharded(leaf) else self.sharding()
        assert sharding is not None
        # By the text of the index: slices cannot be keys of a dictionary on Python 3.11.
        shards = {str(shard.index): shard.data for shard in leaf.addressable_shards}
        # `gathered_sharding` splits the leaf as `local_sharding` does, so that the learner's
        # devices of this host hold a shard with each index.
        copies = []
        for device, index in sharding.addressable_devices_indices_map(leaf.shape).items():
            copies.append(jax.device_put(shards[str(index)], device))
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, copies)

    def _tensor_spec(self, leaf: Any) -> P:
        """Keeps splits over `tensor` whose size the engine's devices divide."""
        spec = []
        for size, axis in zip(leaf.shape, leaf.sharding.spec):
            is_split = axis == TENSOR and size % self.partition_devices == 0
            spec.append(axis if is_split else None)
        return P(*spec)


def place_split_engine(
    mesh: Mesh | None, tensor: int, reserved: Sequence[jax.Device]
) -> SplitPlacement:
    """Chooses several devices; arguments as for `place_engine`, with the mesh of parameters."""
    learner_mesh = None
    if mesh is not None:
        tensor = max(tensor, mesh.shape[TENSOR])
        learner_mesh = _make_mesh(mesh.devices.reshape(-1, tensor))  # `tensor` is its last axis
    if reserved:
        reserved_mesh = _make_mesh(np.array(reserved).reshape(-1, tensor))
        return SplitPlacement(reserved[0], reserved_mesh, learner_mesh, reserved=True)
    assert learner_mesh is not None
    process = jax.process_index()
    # The first device tells the host: `make_mesh` refuses `tensor` devices of several hosts.
    local_rows = [row for row in learner_mesh.devices if row[0].process_index == process]
    local_devices = np.array(local_rows)
    # One device needs no mesh: its program is compiled without `shard_map`.
    engine_mesh = _make_mesh(local_devices) if local_devices.size > 1 else None
    return SplitPlacement(local_devices.flat[0], engine_mesh, learner_mesh)


def _make_mesh(devices: np.ndarray) -> Mesh:
    return Mesh(devices, (SLOTS, TENSOR), axis_types=(AxisType.Auto,) * 2)
