"""What a config makes of the loss, and when learning ends."""

from types import SimpleNamespace

import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.learner import NotFinite, objective, stop_if_stuck


def test_every_third_skipped_update_in_a_row_ends_the_run() -> None:
    for skipped in range(7):
        state = SimpleNamespace(skipped_in_row=skipped)
        if skipped in (3, 6):
            with pytest.raises(NotFinite, match=r"lower config\.optim\.lr"):
                stop_if_stuck(state)
        else:
            stop_if_stuck(state)


def test_importance_weights_are_truncated_only_where_they_are_asked_for() -> None:
    config = default_config()
    assert "tis_cap" not in objective(resolve(config))[1]
    config.engine.name, config.rl.importance_cap = "vllm", 1.5
    assert objective(resolve(config))[1]["tis_cap"] == 1.5
    config.rl.importance_correction = "none"
    assert "tis_cap" not in objective(resolve(config))[1]
