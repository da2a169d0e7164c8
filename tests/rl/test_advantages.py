import itertools
from dataclasses import replace  # noqa: F401

import numpy as np
import pytest

from gigpo_jax.rl.advantages import Advantages, gigpo_advantages
from tests.rl import oracle

PAPER = {"episode_stats": "trajectory", "penalty_in": "reward", "singleton_episode": "zero", "ddof": 1}
VERL_AGENT = {"episode_stats": "step", "penalty_in": "row", "singleton_episode": "raw", "ddof": 1}
COMMON = {"gamma": 0.95, "step_weight": 1.0, "normalize": "mean_std"}
COLUMNS = ("reward", "penalty", "trajectory", "step", "group", "anchor", "mask")


def columns(reward, penalty, trajectory, step, group, state, mask=None) -> dict[str, np.ndarray]:
    state = np.asarray(state, np.uint32)
    return {
        "reward": np.asarray(reward, np.float32),
        "penalty": np.asarray(penalty, np.float32),
        "trajectory": np.asarray(trajectory, np.int32),
        "step": np.asarray(step, np.int32),
        "group": np.asarray(group, np.int32),
        "anchor": np.stack([state * np.uint32(7), np.uint32(2**32 - 1) - state], 1),
        "mask": np.ones(len(reward), bool) if mask is None else np.asarray(mask, bool),
    }


def random_batch(seed: int, rows: int = 160, shuffle: bool = True) -> dict[str, np.ndarray]:
    """Groups of unequal sizes, states shared between groups, missing and masked steps, lonely trajectories."""
    rng = np.random.default_rng(seed)
    steps = []
    for group in range(5):
        for member in range((1, 4, 7, 2, 1)[group]):
            length = 1 if group == 4 else int(rng.integers(1, 14))
            won = rng.random() < 0.5
            kept = [t for t in range(length) if t == 0 or rng.random() < 0.9]
            for t in kept:
                reward = (10.0 if won and t == length - 1 else 0.0) + (rng.random() < 0.1) * rng.normal()
                steps.append((reward, 0.1 * (rng.random() < 0.3), group * 10 + member, t, group, rng.integers(6)))
    steps = steps[:rows]
    batch = columns(*zip(*steps))
    batch["mask"] = rng.random(len(steps)) < 0.9
    if shuffle:
        order = rng.permutation(len(steps))
        batch = {name: value[order] for name, value in batch.items()}
    return batch


def stacked(result: Advantages) -> np.ndarray:
    return np.stack([result.total, result.episode, result.step], 1).astype(np.float64)


@pytest.mark.parametrize(
    ("normalize", "episode_stats", "penalty_in", "singleton_episode", "ddof"),
    list(itertools.product(("mean_std", "mean"), ("trajectory", "step"), ("reward", "row"), ("zero", "raw"), (0, 1))),
)
def test_equals_the_oracle_for_all_switches(normalize, episode_stats, penalty_in, singleton_episode, ddof):
    switches = {
        "normalize": normalize,
        "episode_stats": episode_stats,
        "penalty_in": penalty_in,
        "singleton_episode": singleton_episode,
        "ddof": ddof,
    }
    for seed in range(6):
        gamma, weight = (0.95, 1.0) if seed % 2 else (1.0, 0.5) if seed % 3 else (0.3, 2.0)
        batch = random_batch(seed, shuffle=seed % 2 == 0)
        # A fixed length: the compiled function is reused.
        batch = padded(batch, 200)
        got = stacked(gigpo_advantages(**batch, gamma=gamma, step_weight=weight, **switches))
        want = oracle.advantages(**batch, gamma=gamma, step_weight=weight, **switches)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def padded(batch: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    out = {}
    for name, value in batch.items():
        extra = np.full((rows - len(value), *value.shape[1:]), 0, value.dtype)
        out[name] = np.concatenate([value, extra])
    return out
