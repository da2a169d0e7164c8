"""Placement of an engine's arrays on one device; `split_placement` has several devices."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from gigpo_jax.models import decoder
from gigpo_jax.models.attention import kernels_for
from gigpo_jax.models.cache import memory_order
from gigpo_jax.models.execution import Experts

if TYPE_CHECKING:
    from gigpo_jax.models.expert_config import ExpertConfig

SLOTS = "slots"
TENSOR = "tensor"


@dataclass(frozen=True)
class Placement:
    """The devices of an engine.

    Attributes:
      device: The one device, or the first of several.
    """

    device: jax.Device

    @property
    def is_one_device(self) -> bool:
        """Whether parameters are used as they are, on the device that holds them."""
        return True

    @property
    def partitions(self) -> int:
        """Number of equal partitions of the slots, each of which has its own devices."""
        return 1

    @property
    def partition_devices(self) -> int:
        """Number of devices of a partition, over which the compiler splits its work."""
        return 1

    def cache_sharding(self, heads: int) -> Any:
        """Returns the sharding of a KV cache [L, S, G, C, K]; see `order_cache`."""
        order = memory_order(5, heads // self.partition_devices)
        return self.order_cache(self.sharding(None, SLOTS, TENSOR), order)

    def order_cache(self, sharding: NamedSharding | None, order: Layout) -> Any:
        """Returns the sharding of a cache with its order in memory, on TPUs."""
        if self.device.platform != "tpu":
            return sharding
        return Format(order, sharding or SingleDeviceSharding(self.device))

    @property
    def kernels(self) -> str:
        """The attention kernels that a partition can use."""
        # XLA splits only its own operations over `tensor`, no kernels of other compilers.
        if self.partition_devices > 1:
            return "cpu"
        return kernels_for(self.device)

    def experts(self, experts: "ExpertConfig | None") -> Experts | None:
        """Makes the function for the experts of a model, None for a model without any."""
        if experts is None:
            return None
        from gigpo_jax.models.experts import apply_experts

        return functools.partial(apply_experts, kernels=kernels_for(self.device))

    def sharding(self, *axes: str | None) -> NamedSharding | None:
        """Returns the sharding of an array by its dimensions' axes, or None on one device."""
        del axes
        return None

    def map_partitions(
        self, function: Callable[..., Any], result_axes: Sequence[str | None]
    ) -> Callable[..., Any]:
        """Applies a function (params, cache, slots, message) -> (cache, slots, result) to each one.

        A partition counts its slots from 0 and gets an equal piece of the message, by the first
        axis. `result_axes` are the mesh axes of the result.
        """
        del result_axes
        return function

    def replicate(self, x: jax.Array) -> jax.Array:
        """Gathers an array on all devices of a partition; it must be called inside a partition."""
        return x


def parameter_mesh(params: decoder.Params) -> Mesh | None:
    """Returns the mesh of sharded parameters, None on one device."""
    for leaf in jax.tree.leaves(params):
        if is_sharded(leaf):
            return leaf.sharding.mesh
    return None


def is_sharded(leaf: Any) -> bool:
    """Whether a parameter is sharded over several devices."""
    sharding = getattr(leaf, "sharding", None)
    return isinstance(sharding, NamedSharding) and sharding.mesh.size > 1
