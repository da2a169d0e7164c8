"""Config keys of strategies that several episodes follow (docs/plans.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require_default
from gigpo_jax.core.settings import POSITIVE
from gigpo_jax.rl.algorithms import find_algorithm

KEYS = named_keys(
    declare(
        "train.strategy_episodes",
        "number of a task's episodes with one strategy of env.plan=strategy (docs/plans.md)",
        POSITIVE,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that an algorithm reads numbers of strategies where they are set."""
    del trains
    if "strategy" not in find_algorithm(config.rl.algorithm, config.rl.settings).columns:
        require_default(config, "train.strategy_episodes", f"rl.algorithm={config.rl.algorithm}")


KEY_SET = KeySet(KEYS, check=check)
