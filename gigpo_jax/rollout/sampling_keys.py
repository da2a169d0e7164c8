"""Config keys of sampling from a part of the distribution."""

from ml_collections import ConfigDict

from gigpo_jax.config.core_keys import COUNT
from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import POSITIVE_FRACTION

KEYS = named_keys(
    declare("sampling.top_p", "probability mass of nucleus sampling; 1: off", POSITIVE_FRACTION),
    declare("sampling.top_k", "number of most probable tokens to sample from; -1: off", COUNT),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Refuses a truncated distribution in training."""
    if not trains:
        return
    # The engine's log-probabilities are then of the cut distribution, the learner's of the
    # whole one: every ratio would carry the mass that the cut removed.
    reason = "the learner does not know the truncated distribution that responses are sampled from"
    fix = "use sampling.top_p=1 and sampling.top_k=-1 in training (evaluation may truncate)"
    require(config.sampling.top_p == 1, config, "sampling.top_p", reason, fix)
    require(config.sampling.top_k == -1, config, "sampling.top_k", reason, fix)


KEY_SET = KeySet(KEYS, check=check)
