"""Memory of replayed experts: all minibatches of an iteration are on the devices with them."""

from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from gigpo_jax.devices.memory import REPLAYED
from gigpo_jax.devices.mesh import ROWS
from gigpo_jax.learner.expected_tokens import stored_rows
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.models.expert_numbers import route_width
from gigpo_jax.models.routes import route_dtype
from gigpo_jax.policy import Policy


class ReplayedExperts(Signal):
    """Estimates the memory of replayed experts; samples carry them."""

    @classmethod
    def parameter_bytes(cls, config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
        """Returns the bytes of an iteration's minibatches, over all devices that split rows."""
        assert shape.experts is not None
        itemsize = route_dtype(shape.experts.count).itemsize
        tokens = stored_rows(config) * config.batch.row_length
        return {REPLAYED: tokens * route_width(shape) * itemsize}

    @classmethod
    def abstract_arrays(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
    ) -> dict[str, Any]:
        """Shape of all minibatches of an iteration [B, T, R]."""
        experts = policy.config.experts
        assert experts is not None
        array = jax.ShapeDtypeStruct(
            (stored_rows(config), config.batch.row_length, route_width(policy.config)),
            route_dtype(experts.count),
            sharding=NamedSharding(mesh, P(ROWS)),
        )
        return {REPLAYED: array}
