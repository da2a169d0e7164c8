"""Lite PPO by hand."""

import numpy as np

from gigpo_jax.rl.algorithms import PRESETS
from tests.methods.totals import TWO_TASKS, total


def test_lite_ppo_by_hand() -> None:
    # Returns 10, 0, 0 and 10: mean 5, deviation 10 / sqrt(3).
    want = np.array([20 / 3, 20 / 3, -10 / 3, -10 / 3, -10 / 3, 0]) * np.sqrt(3) / 10
    for preset in PRESETS:
        np.testing.assert_allclose(total(TWO_TASKS, "lite_ppo", preset), want, rtol=1e-5)
    assert not total(TWO_TASKS | {"reward": np.zeros(6, np.float32)}, "lite_ppo").any()
