"""Config keys of several devices: their number along each axis of the mesh."""

from ml_collections import ConfigDict

from gigpo_jax.config.core_keys import COUNT
from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require

KEYS = named_keys(
    declare("mesh.data", "number of devices that split the batch; -1: all remaining", COUNT),
    declare("mesh.fsdp", "number of devices that split batch and parameters", COUNT),
    # For layers that do not fit in one device, or more devices than rows.
    declare("mesh.tensor", "number of devices that split heads and inner width", COUNT),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that the size of one axis at most is left open."""
    del trains
    is_known = sum(size == -1 for size in config.mesh.values()) <= 1
    reason = "only one axis of the mesh can be -1 (all remaining devices)"
    require(is_known, config, "mesh.data", reason)


KEY_SET = KeySet(KEYS, check=check)
