"""MaxRL by hand."""

import numpy as np

from gigpo_jax.rl.algorithms import PRESETS
from tests.methods.totals import TWO_TASKS, total


def test_max_rl_by_hand() -> None:
    for preset in PRESETS:  # mean 10 / 3: (10 - 10 / 3) / (10 / 3) = 2, and -1
        np.testing.assert_allclose(
            total(TWO_TASKS, "max_rl", preset), [2, 2, -1, -1, -1, 0], rtol=1e-6
        )
    penalty = np.array([0, 0, 0.1, 0, 0, 0], np.float32)
    got = total(TWO_TASKS | {"penalty": penalty}, "max_rl", "verl_agent")
    np.testing.assert_allclose(got, [2, 2, -1.03, -1, -1, 0], rtol=1e-5)
    lost = TWO_TASKS | {"reward": np.zeros(6, np.float32), "penalty": penalty}
    assert not total(lost, "max_rl").any()
    # Rewards below 0 have no meaning in units of their mean.
    assert not total(TWO_TASKS | {"reward": -TWO_TASKS["reward"]}, "max_rl").any()
