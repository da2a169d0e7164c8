"""EMA-GRPO by hand."""

import numpy as np

from gigpo_jax.rl.algorithms import PRESETS
from tests.methods.totals import TWO_TASKS, total


def test_ema_grpo_by_hand() -> None:
    # Returns 10, 0, 0 with mean 10 / 3 in the first task; the second one has a single episode.
    deviation = np.full(6, 4.0, np.float32)
    for preset in PRESETS:
        got = total(TWO_TASKS | {"task_deviation": deviation}, "ema_grpo", preset)
        want = np.array([5 / 3, 5 / 3, -5 / 6, -5 / 6, -5 / 6, 0])
        np.testing.assert_allclose(got, want, rtol=1e-5)
    # (20 / 3) / 1 is beyond the guard: the group has its own deviation, 10 sqrt(2) / 3.
    narrow = TWO_TASKS | {"task_deviation": np.ones(6, np.float32)}
    want = np.sqrt(np.array([2, 2, 0.5, 0.5, 0.5, 0])) * [1, 1, -1, -1, -1, 0]
    np.testing.assert_allclose(total(narrow, "ema_grpo"), want, rtol=1e-5)
    # A penalty of 3 in an episode that fails: returns 10, -3, 0 with mean 7 / 3.
    penalty = np.array([0, 0, 3, 0, 0, 0], np.float32)
    got = total(TWO_TASKS | {"task_deviation": deviation, "penalty": penalty}, "ema_grpo")
    np.testing.assert_allclose(got, np.array([23, 23, -16, -16, -7, 0]) / 12, rtol=1e-5)
    equal = {"task_deviation": np.full(6, 1e-3, np.float32), "reward": np.zeros(6, np.float32)}
    assert not total(TWO_TASKS | equal, "ema_grpo").any()
