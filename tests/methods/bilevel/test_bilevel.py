"""GAE over steps and then over tokens, against loops in float64."""

import numpy as np
import pytest

from gigpo_jax.methods.bilevel.advantages import bilevel_gae
from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.gae import step_gae
from tests.rl import oracle
from tests.rl.test_gae import (
    CHAINS,
    COMMON,
    HOW,
    both,
    check_tokens,
    critic_columns,
    steps,
    tokens,
)


def oracle_gae(
    reward, value, token_mask, trajectory, step, group, mask, *, gamma, lam, token_gamma
):
    """[N, R, 2] f64: `step_gae` with the value of the last token, whose target is the reward of
    `token_gae` there.
    """
    last = {n: int(np.flatnonzero(token_mask[n])[-1]) for n in range(len(mask)) if mask[n]}
    ends = np.array([value[n, last[n]] if n in last else 0.0 for n in range(len(mask))])
    targets = oracle.step_gae(reward, ends, trajectory, step, group, mask, gamma=gamma, lam=lam)[
        :, 1
    ]
    rewards = np.zeros(token_mask.shape)
    for n, place in last.items():
        rewards[n, place] = targets[n]
    return oracle.token_gae(rewards, value, token_mask & mask[:, None], gamma=token_gamma, lam=lam)


@pytest.mark.parametrize(
    "seed",
    [seed if seed % 4 == 0 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(9)],
)
def test_equals_the_oracle(seed: int) -> None:
    words = tokens(seed)
    how = HOW[seed] | {"token_gamma": 0.97}
    np.testing.assert_allclose(
        both(bilevel_gae(**words, **how)), oracle_gae(**words, **how), atol=2e-5
    )


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_the_algorithm_whitens_it(seed: int) -> None:
    c = critic_columns(seed)
    mask = (np.arange(9) < c.tokens[:, None]) & c.mask[:, None]
    chains = {name: getattr(c, name) for name in CHAINS}
    how = {"gamma": 0.9, "lam": 0.8, "token_gamma": 1.0}
    expected = oracle_gae(c.reward - c.penalty, c.token_value, mask, **chains, **how)
    check_tokens(make_advantages("bilevel", "verl_agent", **COMMON, lam=0.8)(c), expected, mask)


def test_one_token_a_response_is_gae_over_steps() -> None:
    rows = steps(7)
    one = rows | {
        "value": rows["value"][:, None],
        "token_mask": np.ones((len(rows["mask"]), 1), bool),
    }
    got = bilevel_gae(**one, gamma=0.9, lam=0.8, token_gamma=1.0)
    np.testing.assert_allclose(
        both(got)[:, 0], both(step_gae(**rows, gamma=0.9, lam=0.8)), atol=1e-5
    )
