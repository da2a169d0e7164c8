"""Config keys of plans that prompts show (docs/plans.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import one_of
from gigpo_jax.env_bridge.plans import PLANS, shows_plans
from gigpo_jax.envs import registry

KEYS = named_keys(
    declare(
        "env.plan",
        "kind of plan that the policy writes and its prompts show (docs/plans.md)",
        one_of(*PLANS),
        mixes=True,
    ),
)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks an environment whose responses state plans."""
    del run
    env = config.env
    if env.plan == "none":
        return
    environment = registry.spec(env.name)
    fix = "leave it out"
    reason = f"agent={config.agent} has prompts of its own"
    require(config.agent == "plain", config, "env.plan", reason, fix)
    reason = "the prompts are those of the harness"
    require(not environment.harness, config, "env.plan", reason, fix)
    can_show = shows_plans(registry.find_style(env.name, env.prompt))
    reason = f"env.prompt={env.prompt} has no place for plans"
    require(can_show, config, "env.plan", reason, "use env.prompt=full or compact, or leave it out")
    reason = "its responses have no tags around the action"
    require(bool(environment.action_tags), config, "env.plan", reason, fix)
    PLANS[env.plan].check(config)


KEY_SET = KeySet(KEYS, check_member=check_member)
