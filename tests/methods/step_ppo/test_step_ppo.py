"""GAE over steps of StepPO and Turn-PPO, against a loop in float64."""

import numpy as np
import pytest

from gigpo_jax.rl.algorithms import make_advantages
from tests.rl import oracle
from tests.rl.test_gae import CHAINS, COMMON, critic_columns, whitened


@pytest.mark.parametrize("name", ["step_ppo", "turn_ppo"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_equals_the_oracle(name: str, seed: int) -> None:
    c = critic_columns(seed)
    chains = {column: getattr(c, column) for column in CHAINS}
    step = oracle.step_gae(c.reward - c.penalty, c.value, **chains, gamma=0.9, lam=0.8)
    got = make_advantages(name, "verl_agent", **COMMON, lam=0.8)(c)
    np.testing.assert_allclose(got.total, whitened(step[:, 0], c.mask), atol=5e-5)
    np.testing.assert_allclose(got.target, step[:, 1], atol=2e-5)
    assert got.tokens is None
