"""The tree of episodes by hand."""

import numpy as np

from tests.methods.totals import W, X, Y, Z, hashes, total
from tests.rl.test_advantages import columns


def test_tree_by_hand() -> None:
    # Two episodes reach Y by actions in another order (one node), one reaches it without them
    # (another node).
    batch = columns([0, 0, 3, 0, 0, 0, 0, 0], [0] * 8, [0] * 3 + [1] * 3 + [2] * 2, [0, 1, 2, 0, 1, 2, 0, 1], [0] * 8,
                    [X, Z, Y, X, W, Y, X, Y])  # fmt: skip
    batch["action"] = hashes(1, 2, 3, 2, 1, 4, 5, 3)
    got = total(batch, "tree", normalize="mean")
    # Returns 3, 0, 0 with mean 1. X: all three. Y after {1, 2}: 3 and 0. Z: 3. W and Y after {5}:
    # 0.
    np.testing.assert_allclose(got, [0, 2, 0.5, 0, -1, 0.5, 0, -1], atol=1e-6)
