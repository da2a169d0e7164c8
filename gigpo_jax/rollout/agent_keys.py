"""Config keys of the agents of gigpo eval (docs/agents.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, is_default, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE, POSITIVE
from gigpo_jax.env_bridge.agents import AGENTS, find_agent
from gigpo_jax.envs import registry

KEYS = named_keys(
    declare("agent", f"agent of gigpo eval: {AGENTS}, or module:NAME (docs/agents.md)"),
    declare(
        "eval.trials",
        "number of trials of a task in gigpo eval; one success is enough (docs/agents.md)",
        POSITIVE,
        auto=True,
    ),
    declare(
        "eval.examples",
        "number of examples of each task type in prompts of agents (docs/agents.md)",
        NOT_NEGATIVE,
        may_change=True,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that an agent is used where there are agents, and with the keys that it reads."""
    agent = find_agent(config.agent)
    if agent.template is None:
        reason = f"the prompts of config.agent={config.agent} show no examples"
        has_default = is_default(config, "eval.examples")
        require(has_default, config, "eval.examples", reason, "leave it out")
    if agent.reflection is not None:
        reason = f"{config.agent} reflects between trials"
        require(config.eval.trials > 1, config, "eval.trials", reason, "use 2 or more")
    if trains:
        fix = "leave it out for this mode"
        require(config.agent == "plain", config, "agent", "only gigpo eval has agents", fix)
        require(config.eval.trials == 1, config, "eval.trials", "only gigpo eval has trials", fix)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks that prompts are the run's own where an agent writes them."""
    del run
    if registry.spec(config.env.name).harness:
        reason = "the prompts are those of the harness"
        require(config.agent == "plain", config, "agent", reason, "leave it out")


KEY_SET = KeySet(KEYS, check=check, check_member=check_member)
