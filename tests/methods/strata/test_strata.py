"""StraTA's two levels by hand, and against an oracle in float64 on random batches."""

import math

import jax
import numpy as np
import pytest

from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import collect_columns
from tests.rl.test_advantages import padded

SETTINGS = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}


def make_batch(returns, penalties=None):
    """Rows of two tasks: `returns` has (group, strategy, return), one for each episode.

    Every episode has two steps, and the first one of each strategy its row.
    """
    rows = []
    seen = set()
    for episode, (group, strategy, total) in enumerate(returns):
        if (group, strategy) not in seen:
            seen.add((group, strategy))
            rows.append((0.0, 0.0, episode, 0, group, strategy, True))
        penalty = 0.0 if penalties is None else penalties[episode]
        rows.append((0.25 * total, penalty, episode, 0, group, strategy, False))
        rows.append((0.75 * total, 0.0, episode, 1, group, strategy, False))
    names = ("reward", "penalty", "trajectory", "step", "group", "strategy", "summary")
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    for name in ("reward", "penalty"):
        columns[name] = columns[name].astype(np.float32)
    for name in ("trajectory", "step", "group", "strategy"):
        columns[name] = columns[name].astype(np.int32)
    number = np.arange(len(rows), dtype=np.uint32)
    columns["anchor"] = np.stack([number, number], 1)
    columns["mask"] = np.ones(len(rows), bool)
    return columns


def total(batch, preset="paper", **settings):
    function = jax.jit(make_advantages("strata", preset, **SETTINGS | settings))
    result = function(collect_columns(**padded(batch)))
    np.testing.assert_array_equal(result.total, result.episode)
    return np.asarray(result.total)[: len(batch["mask"])]


def test_two_strategies_of_two_episodes() -> None:
    batch = make_batch([(0, 0, 1.0), (0, 0, 0.0), (0, 3, 0.0), (0, 3, 0.0)])
    # R(z) is the better half's return: 1 and 0. The episodes of the second one are alike.
    half = math.sqrt(0.5)
    want = [half, half, half, -half, -half, -half, 0, 0, 0, 0]
    np.testing.assert_allclose(total(batch), want, atol=1e-5)
    # Without a standard deviation the distances stay.
    want = [0.5, 0.5, 0.5, -0.5, -0.5, -0.5, 0, 0, 0, 0]
    np.testing.assert_allclose(total(batch, normalize="mean"), want, atol=1e-5)


def oracle(batch, best, preset):
    ddof = 1

    def compare(values):
        values = np.array(values)
        deviation = values.std(ddof=ddof) if len(values) > 1 else 0.0
        return (values - values.mean()) / (deviation + 1e-6) if deviation > 0 else 0.0 * values

    out = np.zeros(len(batch["mask"]))
    for group in np.unique(batch["group"]):
        worths = {}
        for strategy in np.unique(batch["strategy"][batch["group"] == group]):
            rows = (batch["group"] == group) & (batch["strategy"] == strategy)
            rows &= ~batch["summary"]
            episodes = np.unique(batch["trajectory"][rows])
            reward = batch["reward"].astype(np.float64) - batch["penalty"]
            returns = [reward[rows & (batch["trajectory"] == e)].sum() for e in episodes]
            kept = math.ceil(best * len(returns) - 1e-4)
            worths[strategy] = np.mean(sorted(returns, reverse=True)[:kept])
            for episode, advantage in zip(episodes, compare(returns), strict=True):
                out[rows & (batch["trajectory"] == episode)] = advantage
        for strategy, advantage in zip(worths, compare([*worths.values()]), strict=True):
            mine = (batch["group"] == group) & (batch["strategy"] == strategy) & batch["summary"]
            out[mine] = advantage
    return out


def test_random_returns_against_the_formulas() -> None:
    rng = np.random.default_rng(3)
    returns = [
        (group, 2 * strategy, rng.normal())
        for group in range(3)
        for strategy in range(3)
        # Some episodes were aborted.
        for _ in range(rng.integers(2, 6))
    ]
    order = rng.permutation(len(returns))
    batch = make_batch([returns[n] for n in order], rng.random(len(returns)))
    got = total(batch)
    np.testing.assert_allclose(got, oracle(batch, 0.5, "paper"), rtol=2e-4, atol=3e-5)
    assert np.any(got[batch["summary"]])


@pytest.mark.parametrize("preset", ["paper", "verl_agent"])
def test_one_strategy_or_one_episode_compares_nothing(preset: str) -> None:
    alone = total(make_batch([(0, 0, 1.0), (0, 0, 0.0), (1, 0, 5.0), (1, 1, 2.0)]), preset)
    # The strategy of the first task, and the steps of the second one.
    assert alone[0] == 0.0
    assert not alone[[6, 7, 9, 10]].any()
    assert alone[[1, 5]].all()
