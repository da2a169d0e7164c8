"""SALT by hand."""

import numpy as np

from tests.methods.totals import X, Y, Z, hashes, total
from tests.rl.test_advantages import columns


def test_salt_by_hand() -> None:
    # Returns 1, 0, 0. The first two episodes share the edge (X, 1, Y).
    batch = columns(
        [0, 1, 0, 0, 0, 0], [0] * 6, [0, 0, 1, 1, 2, 2], [0, 1] * 3, [0] * 6, [X, Y, X, Y, X, Z]
    )
    batch |= {"action": hashes(1, 2, 1, 3, 4, 2), "next_anchor": hashes(Y, 0, Y, 0, Z, 0)}
    got = total(batch, "salt")
    np.testing.assert_allclose(got, [0.2887, 1.1547, 0.2887, -0.5774, -0.5774, -0.5774], atol=1e-4)
