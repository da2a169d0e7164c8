"""GraphGPO by hand, and against an oracle on walks."""

import numpy as np
import pytest

from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import collect_columns
from tests.methods.test_graph_methods import COMMON, FORK, total
from tests.rl import graph_oracle
from tests.rl.test_graph import walks


def test_graphgpo_by_hand() -> None:
    # d(Y) = 1, d(X) = 2; Z has 3, and so has what follows Z. At X q is 10 * 0.1 and 10 * 0.1^3,
    # so +-0.495; Y and Z have one row. A_E is +-5.
    won = np.array([True, True, False, False])
    got = total(FORK | {"won": won}, "graphgpo", normalize="mean")
    np.testing.assert_allclose(got, [5.495, 5, -5.495, -5], atol=1e-5)
    # Rewards on the way are no success.
    got = total(FORK | {"won": won & False}, "graphgpo", normalize="mean")
    np.testing.assert_allclose(got, [5, 5, -5, -5], atol=1e-5)


@pytest.mark.slow
def test_graphgpo_on_walks_equals_its_oracle() -> None:
    """Cycles, dead ends, and shortest ways that lead through several episodes."""
    batch = graph_oracle.with_ends(walks(5, groups=3, members=8, steps=30, states=10), 5)
    made = make_advantages("graphgpo", "paper", **COMMON | {"normalize": "mean"})
    want = graph_oracle.graphgpo(batch, omega=0.1, normalize="mean", ddof=1)
    np.testing.assert_allclose(made(collect_columns(**batch)).step, want, atol=2e-5)
    assert np.any(want)
