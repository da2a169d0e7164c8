"""Methods against the numbers of their sources, against oracles on random batches, and what they
reduce to.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gigpo_jax.rl.algorithms import PRESETS
from tests.methods import oracle
from tests.methods.totals import (
    COMMON,
    SEEDS,
    SWITCHES,
    X,
    check,
    compiled_total,
    episode_advantage,
    hashes,
    total,
)
from tests.rl.test_advantages import Columns, columns, random_columns


def test_repeat_discount_by_hand() -> None:
    # Actions 5, 6, 5, 6 of a winner and 5, 5, 5 of a loser; A = 1 and -1.
    batch = columns(
        [0, 0, 0, 2, 0, 0, 0], [0] * 7, [0] * 4 + [1] * 3, [0, 1, 2, 3, 0, 1, 2], [0] * 7, [X] * 7
    )
    batch["action"] = hashes(5, 6, 5, 6, 5, 5, 5)
    got = total(batch, "repeat_discount", normalize="mean")
    once = (0.8 + 1) / 2
    twice = (0.8**2 + 0.95) / 2
    np.testing.assert_allclose(
        got, [1, 1, once, (0.8 + 0.95) / 2, -1, -(2 - once), -(2 - twice)], rtol=1e-6
    )


def expected_totals(
    batch: Columns, preset: str, normalize: str
) -> Iterator[tuple[str, dict[str, Any], np.ndarray]]:
    """Methods, their settings, and the oracle's total advantages."""
    grpo = episode_advantage(batch, preset, normalize)
    without_deviation = episode_advantage(batch, preset, "mean")
    gamma, step_weight = COMMON["gamma"], COMMON["step_weight"]
    scale = {"normalize": normalize, "ddof": 1}
    penalty = {"penalty_in": PRESETS[preset]["penalty_in"]}
    for own in ({"history": 2, "alpha": 1.0}, {"history": 4, "alpha": 0.5}):
        levels = {"gamma": gamma, "weight_offset": 1, "normalize": normalize}
        yield "hgpo", own, oracle.hgpo(batch, **own, **levels, **penalty)
    yield "salt", {}, oracle.salt(batch, grpo)
    yield "empg", {"k": 0.7}, oracle.empg(batch, grpo, k=0.7, k_next=1.0, zeta=0.05)
    yield (
        "repeat_discount",
        {"repeat": 0.6},
        oracle.repeat_discount(batch, grpo, repeat=0.6, pair=0.95),
    )
    yield "tree", {}, oracle.tree(batch, **scale, **penalty)
    yield "rlvmr", {}, oracle.rlvmr(batch, grpo, step_weight=step_weight, **scale)
    yield "oprl", {}, oracle.oprl(batch, grpo, step_weight=step_weight, **scale)
    yield "igpo", {}, oracle.igpo(batch, gamma=gamma, **penalty)
    baseline = oracle.reinforce_pp_baseline(batch, without_deviation, **scale)
    yield "reinforce_pp_baseline", {}, baseline
    yield "max_rl", {}, oracle.max_rl(batch, **penalty)
    yield "lite_ppo", {}, oracle.lite_ppo(batch, ddof=1, **penalty)
    yield "ema_grpo", {}, oracle.ema_grpo(batch, guard=5.0)
    hindsight = {"temperature": 5.0, "ratio_clip": 0.2}
    yield "hcapo", {}, oracle.hcapo(batch, grpo, **COMMON | scale, **hindsight)


@pytest.mark.parametrize(("preset", "normalize"), SWITCHES)
def test_methods_equal_their_oracles(preset: str, normalize: str) -> None:
    for seed in SEEDS:
        batch = random_columns(seed)
        for name, settings, want in expected_totals(batch, preset, normalize):
            got = compiled_total(batch, name, preset, normalize=normalize, **settings)
            check(got, want, (name, seed, settings))


@pytest.mark.parametrize("base", ["rloo", pytest.param("hgpo", marks=pytest.mark.slow)])
def test_wrappers_without_effect_are_their_base(base: str) -> None:
    batch = random_columns(6)
    plain = total(batch, base)
    used = batch["mask"]
    alone = batch | {"action": hashes(*range(len(plain)))}  # no two edges are equal
    np.testing.assert_allclose(total(alone, "salt", base=base), plain, rtol=1e-6)
    np.testing.assert_allclose(
        total(alone, "repeat_discount", base=base, repeat=0.5), plain, rtol=1e-6
    )
    # With k = 0 only the bonus is left.
    bonus = oracle.empg(batch, 0.0 * plain, k=0.0, k_next=1.0, zeta=0.05)
    got = total(batch, "empg", base=base, k=0.0)
    want = plain[used] - plain[used].mean() + bonus[used]
    np.testing.assert_allclose(got[used], want, rtol=1e-5, atol=1e-6)
