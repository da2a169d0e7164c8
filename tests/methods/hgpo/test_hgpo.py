"""HGPO by hand, and with one level."""

import numpy as np

from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import collect_columns
from tests.methods.totals import COMMON, THREE, total
from tests.rl.test_advantages import padded, random_columns


def test_hgpo_by_hand() -> None:
    got = total(THREE, "hgpo", gamma=0.5, normalize="mean", history=1)
    want = [0.125, 0.2167, 0, -0.125, -0.2833, 0, 0, 0.1667, 0]
    np.testing.assert_allclose(got, want, atol=6e-5)


def test_hgpo_with_one_level_is_the_step_part_of_gigpo() -> None:
    batch = random_columns(5)
    step = make_advantages("gigpo", "paper", **COMMON, ddof=0)(
        collect_columns(**padded(batch))
    ).step
    got = total(batch, "hgpo", history=0)
    np.testing.assert_allclose(got, np.asarray(step)[: len(got)], rtol=1e-5, atol=2e-6)
