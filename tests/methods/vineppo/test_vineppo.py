"""VinePPO by hand."""

import numpy as np

from tests.methods.test_fork_credit import estimate, make_steps


def test_vineppo_by_hand() -> None:
    """V(start) = (9.5 + 0) / 2, V("ab") = (10 + 4) / 2, V("c") = 4; "a" has no continuation."""
    steps = make_steps(
        [
            ("", "abw", [0.0, 0.0, 10.0]),
            ("", "cd", [0.0, 0.0]),
            ("ab", "w", [10.0]),
            ("ab", "ed", [0.0, 4.0]),
            ("c", "ew", [0.0, 4.0]),
        ],
        penalty=0.5,
    )
    advantage, learned = estimate("vineppo", steps)
    # The first two steps share -0.5 + 7 - 4.75.
    want = [1.75, 1.75, 3.0, 4 - 4.75, -4.0, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(advantage, want, rtol=1e-6)
    assert learned.tolist() == [True] * 5 + [False] * 5


def test_vineppo_with_all_values_has_differences_of_neighbours() -> None:
    forks = [("a", "x", [2.0]), ("a", "y", [6.0]), ("aa", "x", [1.0]), ("aa", "y", [3.0])]
    steps = make_steps([("", "aab", [0.0, 1.0, 8.0]), ("", "c", [5.0]), *forks])
    advantage, _ = estimate("vineppo", steps)
    # Values 7, 4 and 2.
    np.testing.assert_allclose(advantage[:4], [0 + 4 - 7, 1 + 2 - 4, 8 - 2, 5 - 7])


def test_vineppo_compares_no_episode_with_itself() -> None:
    """The value of the start is the return of the only episode that begins there."""
    steps = make_steps([("", "abw", [0.0, 0.0, 10.0]), ("ab", "d", [0.0]), ("ab", "w", [4.0])])
    advantage, learned = estimate("vineppo", steps)
    np.testing.assert_allclose(advantage[:3], [0, 0, 10 - 2])
    assert learned[:3].all()
