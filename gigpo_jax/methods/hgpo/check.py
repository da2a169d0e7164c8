"""Checks of a config with HGPO."""

from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require


def check(config: ConfigDict) -> None:
    """Checks that it compares only past steps that the policy has seen."""
    history = config.env.history
    require(
        config.rl.settings.history <= history,
        config,
        "rl.settings.history",
        "more past steps than a prompt shows",
        f"at most env.history={history}",
    )
