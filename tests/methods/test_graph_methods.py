"""Methods of the graph of states: by hand, and against oracles on random batches."""

import functools

import jax
import numpy as np
import pytest

from gigpo_jax.rl.algorithms import PRESETS, make_advantages
from gigpo_jax.rl.types import collect_columns
from tests.rl import graph_oracle
from tests.rl import oracle as gigpo_oracle
from tests.rl.test_advantages import Columns, columns, padded, random_batch
from tests.rl.test_graph import walks

COMMON = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
SWITCHES = [("paper", "mean_std"), ("verl_agent", "mean"), ("verl_agent", "mean_std")]
SEEDS = range(4)
SEVEN = ("reward", "penalty", "trajectory", "step", "group", "anchor", "mask")
X, Y, Z = range(1, 4)
# 2,500 short walks: their states are visited thousands of times.
CROWDED = {"members": 2500, "steps": 50, "states": 4}


@functools.cache
def compiled(name: str, preset: str, **settings):
    return jax.jit(make_advantages(name, preset, **COMMON | settings))


def total(batch: Columns, name: str, preset: str = "paper", **settings) -> np.ndarray:
    """[N] f64, the total advantage."""
    found = compiled(name, preset, **settings)(collect_columns(**padded(batch)))
    return np.asarray(found.total, np.float64)[: len(batch["mask"])]


def step_part(batch: Columns, name: str, **settings) -> np.ndarray:
    made = make_advantages(name, "paper", **COMMON | settings)
    return np.asarray(made(collect_columns(**batch)).step)


def episode_advantage(batch: Columns, preset: str, normalize: str, **changed) -> np.ndarray:
    switches = {**COMMON, **PRESETS[preset], "normalize": normalize, **changed}
    seven = {name: batch[name] for name in SEVEN}
    return gigpo_oracle.advantages(**seven, **switches)[:, 1]


def check(got: np.ndarray, want: np.ndarray, about: object) -> None:
    np.testing.assert_allclose(got, want, rtol=3e-4, atol=1e-4, err_msg=str(about))
    assert np.any(want)


# T1 goes X, Y and wins 10. T2 goes X, Y, Z and wins nothing.
TWO = columns([0, 10, 0, 0, 0], [0] * 5, [0, 0, 1, 1, 1], [0, 1, 0, 1, 2], [0] * 5,
              [X, Y, X, Y, Z])  # fmt: skip


def test_graph_values_by_hand() -> None:
    # gamma 1: V(Z) = 0, V(Y) = V(X) = 5. Only the step that leaves Y counts: +5 and -5.
    got = total(TWO, "graph_values", gamma=1.0, normalize="mean")
    np.testing.assert_allclose(got, [0, 5, 0, -5, 0], atol=1e-5)
    # lam 1 gives the differences of what follows, returns less values: 5, 5, -5, -5, 0. And the
    # episode advantage, +5 and -5 over trajectories, at half its weight.
    got = total(TWO, "graph_values", gamma=1.0, normalize="mean", lam=1.0, episode=0.5)
    np.testing.assert_allclose(got, [7.5, 7.5, -7.5, -7.5, -2.5], atol=1e-5)


@pytest.mark.slow
def test_shrinkage_and_truncation_by_hand() -> None:
    # One pseudo-visit with the mean return 20 / 5 = 4: V(Z) = 2, V(Y) = (10 + 2 + 4) / 3 = 16/3,
    # V(X) = (2 V(Y) + 4) / 3 = 44/9.
    got = total(TWO, "graph_values", gamma=1.0, normalize="mean", shrinkage=1.0)
    want = np.array([16 / 3 - 44 / 9, 14 / 3, 16 / 3 - 44 / 9, 2 - 16 / 3, -2])
    np.testing.assert_allclose(got, want - want.mean(), atol=1e-5)
    # X, Z wins; X, Y, Z comes to the limit of steps. That last step counts in no mean, so
    # V(Z) = 10 comes from its other visit, V(Y) = 5 and V(X) = (5 + 2.5) / 2.
    batch = columns([0, 10, 0, 0, 0], [0] * 5, [0, 0, 1, 1, 1], [0, 1, 0, 1, 2], [0] * 5,
                    [X, Z, X, Y, Z])  # fmt: skip
    batch["truncated"] = np.arange(5) == 4
    got = total(batch, "graph_values", gamma=0.5, normalize="mean", truncation="ignore")
    np.testing.assert_allclose(got, [1.25, 0, -1.25, 0, 0], atol=1e-5)
    got = total(batch, "graph_values", gamma=1.0, normalize="mean")
    np.testing.assert_allclose(got, [0, 5, 0, 0, -5], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "normalize"), SWITCHES)
def test_graph_values_equal_the_oracle(preset: str, normalize: str) -> None:
    own = [
        {"gamma": 0.9, "lam": 0.0, "shrinkage": 0.0, "truncation": "end"},
        {"gamma": 1.0, "lam": 0.6, "shrinkage": 0.5, "truncation": "ignore"},
        {"gamma": 0.9, "lam": 0.0, "shrinkage": 2.0, "truncation": "end"},
        {"gamma": 1.0, "lam": 0.0, "shrinkage": 1.0, "truncation": "ignore"},
    ]
    for seed in SEEDS:
        batch = graph_oracle.with_ends(random_batch(seed), seed)
        settings = own[seed % 4]
        weight = 0.7 * (seed % 2)
        want = graph_oracle.graph_values(batch, **settings, normalize=normalize, ddof=1)
        want = want + weight * episode_advantage(batch, preset, normalize)
        got = total(batch, "graph_values", preset, normalize=normalize, episode=weight, **settings)
        check(got, want, seed)


@pytest.mark.slow
def test_truncated_steps_of_walks_count_in_no_mean() -> None:
    batch = graph_oracle.with_ends(walks(7, groups=2, members=8, steps=30, states=10), 7)
    how = {"lam": 0.0, "shrinkage": 0.5, "truncation": "ignore"}
    made = make_advantages("graph_values", "paper", **COMMON | {"gamma": 1.0}, **how)
    want = graph_oracle.graph_values(batch, gamma=1.0, **how, normalize="mean_std", ddof=1)
    got = np.asarray(made(collect_columns(**batch)).step)
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert np.any(batch["truncated"])


# X, Y wins 10 and X, Z wins nothing.
FORK = columns([0, 10, 0, 0], [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [0] * 4, [X, Y, X, Z])


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "normalize"), SWITCHES)
def test_g2po_graphgpo_and_gagpo_equal_their_oracles(preset: str, normalize: str) -> None:
    how = {"normalize": normalize, "ddof": 1}
    for seed in SEEDS:
        batch = graph_oracle.with_ends(random_batch(seed), seed)
        episode = episode_advantage(batch, preset, normalize)
        penalty_in = PRESETS[preset]["penalty_in"]
        want = episode + graph_oracle.g2po(batch, gamma=0.9, penalty_in=penalty_in, **how)
        check(total(batch, "g2po", preset, normalize=normalize), want, seed)
        want = episode + graph_oracle.graphgpo(batch, omega=0.1, **how)
        check(total(batch, "graphgpo", preset, normalize=normalize), want, seed)
        want = graph_oracle.gagpo(batch, gamma=0.9, lam=0.8, **how)
        check(total(batch, "gagpo", preset, normalize=normalize), want, seed)


@pytest.mark.slow
def test_states_with_thousands_of_visits() -> None:
    batch = walks(1, groups=1, **CROWDED)
    batch["reward"] += np.random.default_rng(0).normal(0, 1, len(batch["reward"]))
    batch = graph_oracle.with_ends(batch, 0)
    assert max(map(len, graph_oracle.visits(batch).values())) > 5000
    how = {"normalize": "mean_std", "ddof": 1}
    g2po = graph_oracle.g2po(batch, gamma=0.9, penalty_in="row", **how)
    # Few of its differences are far from 0, so the deviation that divides them is small.
    np.testing.assert_allclose(step_part(batch, "g2po"), g2po, rtol=0, atol=1e-3)
    gagpo = graph_oracle.gagpo(batch, gamma=0.9, lam=0.8, **how)
    np.testing.assert_allclose(step_part(batch, "gagpo"), gagpo, rtol=0, atol=1e-4)
    graphgpo = graph_oracle.graphgpo(batch, omega=0.1, **how)
    np.testing.assert_allclose(step_part(batch, "graphgpo"), graphgpo, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [{"members": 12, "steps": 60, "states": 6}, CROWDED])
@pytest.mark.parametrize("name", ["graph_values", "gagpo", "g2po"])
def test_rounding_is_not_whitened(name: str, size: dict[str, int]) -> None:
    """Walks whose last step pays 7.1, won or not: with gamma 1 every value is 7.1."""
    batch = walks(3, groups=2, **size)
    last = np.append(batch["trajectory"][1:] != batch["trajectory"][:-1], True)
    batch["reward"] = np.where(last, 7.1, 0.0).astype(np.float32)
    made = make_advantages(name, "paper", **COMMON | {"gamma": 1.0})
    assert not np.any(made(collect_columns(**batch)).step)
