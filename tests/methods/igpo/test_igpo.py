"""IGPO and A2TGPO by hand, and against an oracle on random batches."""

import numpy as np
import pytest

from gigpo_jax.rl.algorithms import PRESETS
from gigpo_jax.rl.types import collect_columns
from tests.methods import oracle
from tests.methods.totals import COMMON, SEEDS, SWITCHES, X, check, compiled, total
from tests.rl.test_advantages import columns, padded, random_columns


def test_igpo_by_hand() -> None:
    # A has three turns and answers right, B two and wrong.
    batch = columns([0, 0, 1, 0, 0], [0] * 5, [0] * 3 + [1] * 2, [0, 1, 2, 0, 1], [0] * 5, [X] * 5)
    batch["answer_logprob"] = np.array([-2, -1.5, -0.5, -2, -1.8], np.float32)
    got = total(batch, "igpo", gamma=1.0)
    np.testing.assert_allclose(got, [1.6144, 1.7793, 0.7071, -1.6144, -0.7071], atol=1e-4)


def test_a2tgpo_by_hand() -> None:
    # The first turns gain exp(-1) - exp(-2) and 0: u = 1 and -1; A's second turn is alone with its
    # index.
    batch = columns([0, 0, 1, 0, 0], [0] * 5, [0] * 3 + [1] * 2, [0, 1, 2, 0, 1], [0] * 5, [X] * 5)
    batch["answer_logprob"] = np.array([-2, -1, -0.5, -3, -3], np.float32)
    found = compiled("a2tgpo", "paper", gamma=1.0)(collect_columns(**padded(batch)))
    want = [0.3 / np.sqrt(2) + 0.7071, 0.7071, 0.7071, -0.3 - 0.7071, -0.7071]
    np.testing.assert_allclose(found.total[:5], want, atol=1e-4)
    sigmoid = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(
        found.clip_scale[:5], [0.7 + 0.6 * sigmoid, 1, 1, 1.3 - 0.6 * sigmoid, 1], atol=1e-5
    )
    # Gains of 2e-4 and 0: the constants in the divisor count.
    batch["answer_logprob"] = np.log(np.array([0.1, 0.1002, 0.1002, 0.1, 0.1], np.float32))
    found = compiled("a2tgpo", "paper", gamma=1.0)(collect_columns(**padded(batch)))
    u = 1e-4 / (np.sqrt(2e-8) + 1e-6)
    np.testing.assert_allclose(found.total[0], 0.3 * u / np.sqrt(2) + 0.7071, atol=2e-4)


@pytest.mark.parametrize(("preset", "normalize"), SWITCHES)
def test_a2tgpo_equals_its_oracle(preset: str, normalize: str) -> None:
    """Advantages, and the factor of the clip range."""
    settings = {"gamma": COMMON["gamma"], "penalty_in": PRESETS[preset]["penalty_in"]}
    for seed in SEEDS:
        batch = random_columns(seed)
        want = oracle.a2tgpo(batch, **settings, alpha=0.3, clip_scale=0.3)
        found = compiled("a2tgpo", preset, normalize=normalize)(collect_columns(**padded(batch)))
        check(found.total[: len(want)], want[:, 0], seed)
        check(found.clip_scale[: len(want)], want[:, 1], seed)
