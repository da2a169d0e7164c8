"""Total advantages of methods, and columns that several of their tests have."""

import functools

import jax
import numpy as np
import pytest

from gigpo_jax.rl.algorithms import PRESETS, make_advantages
from gigpo_jax.rl.types import collect_columns
from tests.rl import oracle as gigpo_oracle
from tests.rl.test_advantages import Columns, columns, padded

COMMON = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
SEEDS = range(4)
SWITCHES = [
    ("paper", "mean_std"),
    pytest.param("verl_agent", "mean", marks=pytest.mark.slow),
]


@functools.cache
def compiled(name: str, preset: str, **settings):
    return jax.jit(make_advantages(name, preset, **COMMON | settings))


def compiled_total(batch: Columns, name: str, preset: str = "paper", **settings) -> np.ndarray:
    """[N] f64, the total advantage; all batches have one padded length, so code is compiled
    once.
    """
    found = compiled(name, preset, **settings)(collect_columns(**padded(batch)))
    return np.asarray(found.total, np.float64)[: len(batch["mask"])]


def total(batch: Columns, name: str, preset: str = "paper", **settings) -> np.ndarray:
    """As `compiled_total`, operation by operation: methods share their compiled operations."""
    with jax.disable_jit():
        found = make_advantages(name, preset, **COMMON | settings)(collect_columns(**padded(batch)))
    return np.asarray(found.total, np.float64)[: len(batch["mask"])]


def hashes(*numbers: int) -> np.ndarray:
    return np.array([(n * 7, n) for n in numbers], np.uint32)


def episode_advantage(batch: Columns, preset: str, normalize: str, **changed) -> np.ndarray:
    """[N] f64 of the oracle."""
    settings = {**COMMON, **PRESETS[preset], "normalize": normalize, **changed}
    seven = {
        name: batch[name]
        for name in ("reward", "penalty", "trajectory", "step", "group", "anchor", "mask")
    }
    return gigpo_oracle.advantages(**seven, **settings)[:, 1]


def check(got: np.ndarray, want: np.ndarray, about: object) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=3e-5, err_msg=str(about))
    assert np.any(want)


X, Y, Z, W, V, U = range(1, 7)
# Three episodes of three steps: X,Y,Z wins; X,Y,W does not; V,Y,U wins.
THREE = columns([0, 0, 1, 0, 0, 0, 0, 0, 1], [0] * 9, [0] * 3 + [1] * 3 + [2] * 3, [0, 1, 2] * 3, [0] * 9,
                [X, Y, Z, X, Y, W, V, Y, U])  # fmt: skip
# Two tasks: three episodes with returns 10, 0, 0, and one episode that wins alone.
TWO_TASKS = columns([0, 10, 0, 0, 0, 10], [0] * 6, [0, 0, 1, 1, 2, 0], [0, 1, 0, 1, 0, 0],
                    [0] * 5 + [1], [X, Y, X, Y, X, X])  # fmt: skip
