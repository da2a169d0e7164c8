"""HiPER by hand, against an oracle in float64 on random batches, and what it leaves alone."""

import itertools

import jax
import numpy as np
import pytest

from gigpo_jax.methods.hiper.advantages import segment_gae
from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.gae import value_metrics
from gigpo_jax.rl.types import collect_columns
from tests.rl.test_advantages import padded, plan_columns

SETTINGS = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
OWN = {"lam": 0.8, "keep_penalty": 0.4}


def estimates_of(start, truncated=False, gamma=1.0, lam=1.0):
    value = np.stack([[0.5, 0.6, 0.7, 0.8], [0.5, 9.0, 0.6, 9.0], [0.5, 0.5, 0.6, 0.7]], 1)
    found = segment_gae(
        np.array([0.0, 0.0, 0.0, 1.0], np.float32),
        value.astype(np.float32),
        np.array(start),
        np.zeros(4, np.int32),
        np.array([False, False, False, truncated]),
        gamma=gamma,
        lam=lam,
        segment_lam=0.95,
    )
    return np.asarray(found)


def test_four_turns_with_a_switch_in_the_middle() -> None:
    """The example of the method: both of its scales, and its decisions to switch."""
    found = estimates_of([True, False, True, False])
    np.testing.assert_allclose(found[:, 0], [0.1, 0.0, 0.3, 0.2], atol=1e-6)
    np.testing.assert_allclose(found[[0, 2], 1], [0.48, 0.4], atol=1e-6)
    np.testing.assert_allclose(found[:, 2], [0.1, 0.1, 0.4, 0.3], atol=1e-6)


def test_an_episode_that_used_up_its_steps_goes_on_with_its_own_values() -> None:
    found = estimates_of([True, False, True, False], truncated=True)
    # low: 1 + V_low - V_low; high and switch: 1 + V_high of the segment less their own value.
    np.testing.assert_allclose(found[:, 0], [0.1, 0.0, 1.1, 1.0], atol=1e-6)
    np.testing.assert_allclose(found[[0, 2], 1], [0.1 + 0.95, 1.0], atol=1e-6)
    np.testing.assert_allclose(found[:, 2], [0.1, 0.1, 1.0, 0.9], atol=1e-6)


def oracle(batch, gamma, lam, keep_penalty, truncation):
    """[N, 3] f64 of advantages and of targets, episode by episode, as the formulas stand."""
    rows = len(batch["mask"])
    advantage = np.full((rows, 3), np.nan)
    target = np.zeros((rows, 3))
    value = batch["plan_value"].astype(np.float64)
    keys = {(g, t) for g, t, m in zip(batch["group"], batch["trajectory"], batch["mask"]) if m}
    for group, trajectory in keys:
        mine = np.flatnonzero(
            batch["mask"] & (batch["group"] == group) & (batch["trajectory"] == trajectory)
        )
        mine = mine[np.argsort(batch["step"][mine], kind="stable")]
        start = batch["plan_start"][mine].copy()
        start[0] = True
        reward = batch["reward"][mine].astype(np.float64) - batch["penalty"][mine]
        kept = ~start
        if kept.any():
            share = kept.sum() / len(mine)
            reward[kept] -= keep_penalty * share / kept.sum()
        reward[kept & batch["plan_changed"][mine]] -= 0.3
        goes_on = bool(batch["truncated"][mine[-1]]) and truncation == "own"
        edges = [*np.flatnonzero(start), len(mine)]
        later_high = 0.0
        for first, after in reversed(list(itertools.pairwise(edges))):
            is_last = after == len(mine)
            if is_last:
                behind = value[mine[first], 1] if goes_on else 0.0
            else:
                behind = value[mine[after], 1]
            low = 0.0
            for place in reversed(range(first, after)):
                row = mine[place]
                if place + 1 < after:
                    following = value[mine[place + 1], 0]
                elif is_last:
                    following = value[row, 0] if goes_on else 0.0
                else:
                    following = behind
                difference = reward[place] + gamma * following - value[row, 0]
                low = difference + gamma * lam * low
                advantage[row, 0] = low
                length = after - place
                rewards = sum(gamma**k * reward[place + k] for k in range(length))
                advantage[row, 2] = rewards + gamma**length * behind - value[row, 2]
            length = after - first
            rewards = sum(gamma**k * reward[first + k] for k in range(length))
            high = rewards + gamma**length * behind - value[mine[first], 1]
            later_high = high + gamma**length * 0.95 * later_high
            advantage[mine[first], 1] = later_high
    has_value = ~np.isnan(advantage)
    target[has_value] = (advantage + value)[has_value]
    for k in range(3):
        real = advantage[has_value[:, k], k]
        advantage[:, k] = (advantage[:, k] - real.mean()) / np.sqrt(real.var() + 1e-8)
    return np.nan_to_num(advantage), target


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("truncation", ["own", "end"])
def test_random_batches_against_the_formulas(seed: int, truncation: str) -> None:
    batch = padded(plan_columns(seed))
    function = make_advantages("hiper", "paper", **SETTINGS, **OWN, truncation=truncation)
    found = jax.jit(function)(collect_columns(**batch))
    parts, target = oracle(batch, 0.9, **OWN, truncation=truncation)
    np.testing.assert_allclose(found.target, target, rtol=2e-4, atol=3e-5)
    row, token = np.nonzero((batch["token_part"] >= 0) & batch["mask"][:, None])
    want = np.zeros_like(batch["token_value"], np.float64)
    want[row, token] = parts[row, batch["token_part"][row, token]]
    np.testing.assert_allclose(found.tokens, want, rtol=2e-4, atol=3e-5)
    counts = np.maximum((batch["token_part"] >= 0).sum(1), 1)
    np.testing.assert_allclose(found.total, want.sum(1) / counts, rtol=2e-4, atol=3e-5)


def test_a_subgoal_teaches_its_value_where_it_begins() -> None:
    """Its values of other turns count neither in the targets nor in the metric."""
    batch = padded(plan_columns(0))
    del batch["token_value"]  # of another critic
    function = jax.jit(make_advantages("hiper", "paper", **SETTINGS, **OWN))
    later = batch["mask"] & ~batch["plan_start"] & (batch["step"] > 0)
    changed = {"plan_value": batch["plan_value"].copy()}
    changed["plan_value"][later, 1] = 50.0
    first, second = (function(collect_columns(**batch | extra)) for extra in ({}, changed))
    np.testing.assert_array_equal(first.tokens, second.tokens)
    np.testing.assert_array_equal(first.target, second.target)
    measured = [
        value_metrics(collect_columns(**batch | extra), first.target)["critic/value_mean"]
        for extra in ({}, changed)
    ]
    assert measured[0] == measured[1]
