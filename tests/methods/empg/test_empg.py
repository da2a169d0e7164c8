"""EMPG by hand."""

import numpy as np

from tests.methods.totals import X, Y, total
from tests.rl.test_advantages import columns


def test_empg_by_hand() -> None:
    # Two episodes of two steps with advantages 1 and -1: R = 2 and 0 without a standard deviation.
    batch = columns([0, 2, 0, 0], [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [0] * 4, [X, Y, X, Y])
    batch["entropy"] = np.array([0.2, 0.6, 0.4, 1.0], np.float32)
    got = total(batch, "empg", normalize="mean")
    np.testing.assert_allclose(got, [1.3040, 0.7020, -1.2923, -0.7137], atol=1e-4)
    # All equally certain: nothing is scaled, and first steps have the bonus 0.05 - 0.025.
    batch["entropy"] = np.full(4, 0.3, np.float32)
    got = total(batch, "empg", normalize="mean")
    np.testing.assert_allclose(got, [1.025, 0.975, -0.975, -1.025], atol=1e-6)
