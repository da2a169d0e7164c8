"""G2PO by hand."""

import numpy as np

from tests.methods.test_graph_methods import FORK, total


def test_g2po_by_hand() -> None:
    # V(X) = (0.9025 * 10 + 0) / 2 = 4.5125, V(Y) = 9.5, V(Z) = 0. What follows: 9.5, 10, 0, 0.
    # At X +-4.75. Over the task 4.9875, 0.5, -4.5125, 0 less their mean 0.24375.
    want = np.array([4.75, 0, -4.75, 0]) + np.array([4.9875, 0.5, -4.5125, 0]) - 0.24375
    episode = np.array([5, 5, -5, -5])
    got = total(FORK, "g2po", gamma=0.95, normalize="mean")
    np.testing.assert_allclose(got, want + episode, atol=1e-5)
    got = total(FORK, "g2po", gamma=0.95, normalize="mean", step_weight=0.5)
    np.testing.assert_allclose(got, 0.5 * want + episode, atol=1e-5)
