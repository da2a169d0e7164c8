"""Config keys of a limit of steps that grows (`step_limits`)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE

KEYS = named_keys(
    declare(
        "env.first_max_steps",
        "largest number of actions in training episodes of the first iteration; it grows linearly "
        "to env.max_steps; 0: env.max_steps from the start",
        NOT_NEGATIVE,
        mixes=True,
    ),
    declare(
        "env.max_steps_iterations",
        "number of iterations in which the limit grows from env.first_max_steps to env.max_steps",
        NOT_NEGATIVE,
        mixes=True,
    ),
)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks the pair of keys of an environment."""
    del run
    env = config.env
    reason = "the limit of steps grows"
    fix = f"at most env.max_steps={env.max_steps}"
    grows = env.first_max_steps <= env.max_steps
    require(grows, config, "env.first_max_steps", reason, fix)
    # Each alone would do nothing, or begin with episodes of no step.
    is_pair = bool(env.first_max_steps) == bool(env.max_steps_iterations)
    reason = f"not read without the other of the pair; env.first_max_steps={env.first_max_steps}"
    fix = "give both, or leave both out"
    require(is_pair, config, "env.max_steps_iterations", reason, fix)


KEY_SET = KeySet(KEYS, check_member=check_member)
