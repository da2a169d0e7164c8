"""Config key of episodes that begin in states of an expert's episode (docs/forks.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE
from gigpo_jax.envs import registry
from gigpo_jax.rollout.start_keys import check_one_start, check_replay

NAME = "train.expert_starts"
KEYS = named_keys(
    declare(
        NAME,
        "number of iterations after which episodes begin one action of an expert earlier, at first "
        "before its last one; 0: off (docs/forks.md)",
        NOT_NEGATIVE,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that nothing else begins episodes in recorded states."""
    del trains
    if config.train.expert_starts:
        check_one_start(config, NAME)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks that an environment has an expert whose states episodes can begin in."""
    if not run.train.expert_starts:
        return
    env = config.env
    # The policy's first step would be behind the limit.
    reason = "starts that move and a limit that grows are two orders of the same steps"
    require(not env.first_max_steps, config, "env.first_max_steps", reason, "use 0")
    reason = f"{env.name} has no expert"
    has_expert = registry.spec(env.name).expert is not None
    require(has_expert, run, NAME, reason, "use 0, or another environment")
    check_replay(config, run, NAME)


KEY_SET = KeySet(KEYS, check=check, check_member=check_member)
