"""Checks of a config with SLEA-RL."""

from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require


def check(config: ConfigDict) -> None:
    """Checks that there is a library of lessons."""
    reason = f"{config.rl.algorithm} shows lessons of earlier episodes"
    fix = "use 5, or another number of iterations without them"
    require(config.train.experience > 0, config, "train.experience", reason, fix)
