"""Config keys of environments that are slow to start or to answer."""

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.core.settings import POSITIVE

KEYS = named_keys(
    # For servers and sandboxes that fetch something at their start (docs/mcp.md).
    declare(
        "env.start_timeout_s",
        "time limit for the start of a worker and for a reset",
        POSITIVE,
        may_change=True,
    ),
    # For environments behind a network, and harnesses, whose step is a whole episode.
    declare(
        "env.step_timeout_s",
        "time limit for a step; then the worker is replaced",
        POSITIVE,
        may_change=True,
    ),
)
KEY_SET = KeySet(KEYS)
