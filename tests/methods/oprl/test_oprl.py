"""OPRL by hand."""

import numpy as np

from tests.methods.totals import X, Y, total
from tests.rl.test_advantages import columns


def test_oprl_by_hand() -> None:
    # The example of the paper's formula: r = .2, .1 in a won episode, -.1, 0 in a lost one.
    batch = columns([0, 1, 0, 0], [0] * 4, [0, 0, 1, 1], [0, 1] * 2, [0] * 4, [X, Y] * 2)
    batch |= {"implicit_reward": np.array([0.2, 0.1, -0.1, 0.0], np.float32)}
    for weight in (1.0, 0.5):
        got = total(batch, "oprl", step_weight=weight)
        want = np.array([1.1619, 0.3873, -1.1619, -0.3873]) * weight
        outcome = np.array([0.7071, 0.7071, -0.7071, -0.7071])
        np.testing.assert_allclose(got, want + outcome, atol=1e-4)
    # Rows of another task are not compared with these.
    other = columns([0, 0], [0] * 2, [0, 1], [0] * 2, [1] * 2, [X] * 2)
    other |= {"implicit_reward": np.array([7.0, 9.0], np.float32)}
    both = {name: np.concatenate([batch[name], other[name]]) for name in batch}
    np.testing.assert_allclose(total(both, "oprl")[:4], total(batch, "oprl"), atol=1e-6)
