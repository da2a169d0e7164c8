"""Config keys of rollouts that run ahead of the learner, during its updates."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE

KEYS = named_keys(
    # For rollouts that take as long as updates: both run at once.
    declare(
        "train.max_staleness",
        "largest number of updates between the weights that sample and those that learn; 0: no "
        "rollouts in updates",
        NOT_NEGATIVE,
    ),
    # For servers, whose long responses would otherwise hold up the weights.
    declare(
        "train.inflight",
        "whether new weights replace those of running requests; True: no exact resume "
        "(docs/engine_server.md)",
    ),
    declare(
        "engine.devices",
        "number of devices of a host for the engine alone; 0: those that train (docs/scaling.md)",
        NOT_NEGATIVE,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that devices of the engine alone are busy, and that requests run during updates."""
    max_staleness = config.train.max_staleness
    reason = "idle during updates, and the others during rollouts"
    fix = "use train.max_staleness of at least 1, or 0"
    is_used = max_staleness > 0 or not config.engine.devices
    require(is_used, config, "engine.devices", reason, fix)
    # An engine's process, which has the learner's config, does not read the key.
    if not trains or not config.train.inflight:
        return
    reason = "the engine of this process changes its weights between requests"
    fix = "use engine.name=jax_server or vllm"
    require(config.engine.name != "jax", config, "train.inflight", reason, fix)
    reason = "no request runs during an update"
    fix = "use train.max_staleness of at least 1"
    require(max_staleness > 0, config, "train.inflight", reason, fix)


KEY_SET = KeySet(KEYS, check=check)
