"""What a config makes of the loss."""

from gigpo_jax.config import default_config
from gigpo_jax.learner import objective


def test_importance_weights_are_truncated_only_where_they_are_asked_for() -> None:
    config = default_config()
    assert "tis_cap" not in objective(config)[1]
    config.engine.name, config.rl.tis_cap = "vllm", 1.5
    assert objective(config)[1]["tis_cap"] == 1.5
    config.rl.behaviour = "recompute"
    assert "tis_cap" not in objective(config)[1]
