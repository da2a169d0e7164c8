"""Config keys of lessons from earlier episodes (docs/experience.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import Compact
from gigpo_jax.envs import registry

KEYS = named_keys(
    declare(
        "train.experience",
        "number of iterations before prompts show lessons of earlier episodes, which the policy "
        "writes from the first one on; 0: none are written (docs/experience.md)",
        NOT_NEGATIVE,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks a library of lessons, apart from its environments."""
    del trains
    train = config.train
    if not train.experience:
        return
    reason = "lessons of an iteration are in the prompts of the next one"
    fix = "use train.max_staleness=0"
    require(not train.max_staleness, config, "train.experience", reason, fix)
    reason = f"agent={config.agent} has prompts of its own"
    require(config.agent == "plain", config, "train.experience", reason, "use agent=plain")


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks that prompts show lessons."""
    if not run.train.experience:
        return
    env = config.env
    template = registry.find_style(env.name, env.prompt)
    # A program of a harness has prompts of its own.
    shows = isinstance(template, (Compact, Instruct)) and not registry.spec(env.name).harness
    reason = f"prompts of env.name={env.name} with env.prompt={env.prompt} show no lessons"
    fix = "use env.prompt=full or compact, or train.experience=0"
    require(shows, run, "train.experience", reason, fix)


def check_library(config: ConfigDict) -> None:
    """Checks that SLEA-RL has a library of lessons."""
    reason = f"{config.rl.algorithm} shows lessons of earlier episodes"
    fix = "use 5, or another number of iterations without them"
    require(config.train.experience > 0, config, "train.experience", reason, fix)


KEY_SET = KeySet(KEYS, check=check, check_member=check_member)
