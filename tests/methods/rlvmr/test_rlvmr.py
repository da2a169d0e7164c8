"""RLVMR by hand."""

import numpy as np

from tests.methods.totals import X, total
from tests.rl.test_advantages import columns


def test_rlvmr_by_hand() -> None:
    # Two episodes without a return: planning 1, 0; explore 1, 0, 1; reflection 1 alone.
    batch = columns([0] * 6, [0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2] * 2, [0] * 6, [X] * 6)
    batch |= {
        "tag": np.array([1, 2, 3, 1, 2, 2], np.int32),
        "step_reward": np.array([1, 1, 1, 0, 0, 1], np.float32),
    }
    got = total(batch, "rlvmr")
    np.testing.assert_allclose(got, [0.7071, 0.5774, 1, -0.7071, -1.1547, 0.5774], atol=1e-4)
