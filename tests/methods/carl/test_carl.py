"""CARL by hand."""

import numpy as np

from tests.methods.test_fork_credit import estimate, make_steps


def test_carl_by_hand() -> None:
    """R("a") = (10 + 0 + 4) / 3, R(start) = (R("a") + 0) / 2: forks do not count as episodes."""
    steps = make_steps(
        [
            ("", "abw", [0.0, 0.0, 10.0]),
            ("", "cd", [0.0, 0.0]),
            ("a", "d", [0.0]),
            ("a", "ew", [0.0, 4.0]),
        ]
    )
    advantage, learned = estimate("carl", steps)
    want = [14 / 3 - 7 / 3, 10 - 14 / 3, 0, -7 / 3, 0, -14 / 3, 4 - 14 / 3, 0]
    np.testing.assert_allclose(advantage, want, rtol=1e-5)
    # Those that leave the start and "a"; from the others one step goes on.
    assert learned.tolist() == [True, True, False, True, False, True, True, False]
