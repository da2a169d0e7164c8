"""Config keys of what steps lose from their rewards: wasted actions, long responses."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE
from gigpo_jax.envs import registry

KEYS = named_keys(
    declare(
        "env.regret",
        "whether the environment counts the actions that a step wasted: metric episode/regret "
        "(docs/credit.md)",
        mixes=True,
    ),
    declare(
        "env.regret_reward",
        "reward that a step loses for each action that it wasted; needs env.regret=True "
        "(docs/advantages.md)",
        NOT_NEGATIVE,
        mixes=True,
    ),
    # For DAPO, whose overlong punishment it is.
    declare(
        "env.overlong_buffer",
        "tokens below sampling.max_response_tokens in which the reward falls; 0: off "
        "(docs/algorithm.md)",
        NOT_NEGATIVE,
        mixes=True,
    ),
)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks that an environment tells the regret, and that responses are long enough."""
    del run
    env = config.env
    response_tokens = config.sampling.max_response_tokens
    reason = "no response is that long"
    fix = f"at most sampling.max_response_tokens={response_tokens}"
    is_short = env.overlong_buffer <= response_tokens
    require(is_short, config, "env.overlong_buffer", reason, fix)
    if "regret" in registry.spec(env.name).run_arguments:
        reason = "the environment does not tell the regret"
        fix = "add --config.env.regret=True"
        require(not env.regret_reward or env.regret, config, "env.regret_reward", reason, fix)
    else:
        reason = f"{env.name} does not compute it"
        require(not env.regret, config, "env.regret", reason, "use False")


KEY_SET = KeySet(KEYS, check_member=check_member)
