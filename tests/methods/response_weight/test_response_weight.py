"""Weights of thoughts by hand."""

import numpy as np

from gigpo_jax.rl.algorithms import find_algorithm
from tests.methods.totals import total
from tests.rl.test_advantages import random_columns


def test_response_weight_by_hand() -> None:
    batch = random_columns(7)
    np.testing.assert_array_equal(
        total(batch, "response_weight", base="rloo"), total(batch, "rloo")
    )
    weights = find_algorithm("response_weight").token_weights
    assert weights(np.array([False, True, True, False]), base="grpo", thought=0.25).tolist() == [
        0.25,
        1,
        1,
        0.25,
    ]
