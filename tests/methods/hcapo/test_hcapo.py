"""HCAPO by hand."""

import numpy as np

from tests.methods.totals import X, Y, total
from tests.rl.test_advantages import columns


def test_hcapo_by_hand() -> None:
    # One winner and one loser of two steps each; probabilities in hindsight 0.7, 0.3 and 0.5, 0.5.
    batch = columns([0, 10, 0, 0], [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [0] * 4, [X, Y, X, Y])
    batch["hindsight_logprob"] = np.log(np.array([0.7, 0.3, 0.5, 0.5], np.float32)) * 5
    own = {"gamma": 0.5, "normalize": "mean"}
    got = total(batch, "hcapo", **own)
    # rho 1.2 and 0.8 (clipped): Q = 1.2 * 2.5 and 0.8 * 5, then 0 and 0; their mean is 1.75.
    # A_E = 5 and -5.
    np.testing.assert_allclose(got, [6.25, 7.25, -6.75, -6.75], rtol=1e-6)
    # With gamma 0.1 the first step of the winner is below the mean of the group, and counts as 0.
    got = total(batch, "hcapo", **own | {"gamma": 0.1})
    q = np.array([1.2 * 0.1, 0.8, 0, 0])
    want = [5, 5 + 0.8 - q.mean(), -5 - q.mean(), -5 - q.mean()]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert not total(batch | {"reward": np.zeros(4, np.float32)}, "hcapo", **own).any()
    alone = {name: column[:2] for name, column in batch.items()}
    np.testing.assert_allclose(total(alone, "hcapo", **own | {"gamma": 1.0}), [2, 0], atol=1e-5)
