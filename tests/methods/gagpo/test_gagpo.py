"""GAGPO by hand."""

import numpy as np

from tests.methods.test_graph_methods import FORK, total


def test_gagpo_by_hand() -> None:
    # gamma 1/2: V(X) = (5 + 0) / 2 = 2.5, V(Y) = 10, V(Z) = 0. Differences 2.5, 0, -2.5, 0.
    got = total(FORK, "gagpo", gamma=0.5, normalize="mean")
    np.testing.assert_allclose(got, [2.5, 0, -2.5, 0], atol=1e-5)
