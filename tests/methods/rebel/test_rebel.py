"""ReBel by hand, and against the formulas in float64 on random batches."""

import jax
import numpy as np
import pytest

from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import collect_columns
from tests.rl.test_advantages import columns, padded, permuted

SETTINGS = {"gamma": 0.5, "step_weight": 0.5, "normalize": "mean_std"}


def total(batch, preset="paper", **settings) -> np.ndarray:
    function = jax.jit(make_advantages("rebel", preset, **SETTINGS | settings))
    return np.asarray(function(collect_columns(**padded(batch))).total)[: len(batch["mask"])]


def hashes(*numbers: int) -> np.ndarray:
    return np.array([(number * 7, number) for number in numbers], np.uint32)


def test_two_episodes_with_one_belief_at_their_start() -> None:
    batch = columns([0, 10, 0, 0], [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [0] * 4, [1, 2, 3, 4])
    grades = np.zeros((4, 4), np.float32)
    # With the weights 0.4, 0.3, 0.2 and 0.1 grades of 1, 0.5, 0 and 0.5.
    grades[0] = 1.0
    grades[1] = [0.5, 0.6, 0.5, 0.2]
    grades[3] = [1.0, 0.0, 0.0, 1.0]
    batch |= {
        "belief": hashes(1, 2, 1, 3),
        "belief_grade": grades,
        "task_type": hashes(5, 5, 5, 5),
    }
    # A_E: 5 and -5. At the shared belief E is 5 and 0, B is 1.25 and 0.25: distances 2.5 and 0.5
    # from their means. Later beliefs are alone. Then all four rows are divided by their deviation.
    raw = np.array([6.5, 5.0, -6.5, -5.0])
    got = total(batch)
    np.testing.assert_allclose(got, raw / np.sqrt(134.5 / 3), rtol=1e-5)


def test_the_episode_mean_does_not_depend_on_lengths() -> None:
    batch = columns([10, 0, 0, 0], [0.5, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1, 2], [0] * 4, [1] * 4)
    batch |= {
        "belief": hashes(1, 2, 3, 4),
        "belief_grade": np.zeros((4, 4), np.float32),
        "task_type": hashes(5, 5, 5, 5),
    }
    function = make_advantages("rebel", "verl_agent", **SETTINGS)
    # 5 and -5 from the mean 5; its penalty counts in the row alone.
    np.testing.assert_allclose(function(collect_columns(**batch)).episode, [4.5, -5, -5, -5])


def random_batch(seed: int):
    """Tasks of three types: one with many rows, one with few, one with a single row."""
    rng = np.random.default_rng(seed)
    rows = []
    for group, (task_type, episodes, longest) in enumerate(
        [(0, 4, 5), (0, 5, 6), (1, 2, 3), (2, 1, 1), (3, 6, 4)]
    ):
        for member in range(episodes):
            length = int(rng.integers(1, longest + 1))
            for step in range(length):
                # All episodes of type 3 end alike.
                won = task_type != 3 and step == length - 1 and rng.random() < 0.5
                rows.append((10.0 * won, 0.1 * rng.random(), member, step, group, 0, task_type))
    *names, types = zip(*rows, strict=True)
    batch = columns(*names)
    count = len(rows)
    batch |= {
        "belief": hashes(*rng.integers(3, size=count)),
        "belief_grade": rng.random((count, 4)).astype(np.float32),
        "task_type": hashes(*types),
    }
    # Grades that hardly differ, so the deviation of type 3 stays below the limit.
    batch["belief_grade"][np.array(types) == 3] *= 0.1
    return permuted(batch, rng.permutation(count))


def oracle(batch, weights, gamma: float, step_weight: float) -> np.ndarray:
    count = len(batch["mask"])
    grade = batch["belief_grade"].astype(np.float64) @ np.array(weights)
    reward = batch["reward"].astype(np.float64)
    episodes: dict[tuple[int, int], list[int]] = {}
    for row in np.lexsort((batch["step"],)):
        key = (int(batch["group"][row]), int(batch["trajectory"][row]))
        episodes.setdefault(key, []).append(row)
    episode, outcome, belief = np.zeros((3, count))
    for (group, _), rows in episodes.items():
        others = [r for (other, _), r in episodes.items() if other == group]
        returns = [(reward[r] - batch["penalty"][r]).sum() for r in others]
        alone = len(returns) == 1
        own = (reward[rows] - batch["penalty"][rows]).sum()
        episode[rows] = 0.0 if alone else own - np.mean(returns)
        for place, row in enumerate(rows):
            outcome[row] = gamma ** (len(rows) - 1 - place) * reward[rows].sum()
            belief[row] = sum(gamma**k * grade[r] for k, r in enumerate(rows[place:]))
    values = np.array(episode)
    keys = np.column_stack([batch["group"], batch["belief"]])
    for key in np.unique(keys, axis=0):
        peers = (keys == key).all(1)
        for column in (outcome, belief):
            values[peers] += step_weight * (column[peers] - column[peers].mean())
    result = np.array(values)
    for key in np.unique(batch["task_type"], axis=0):
        rows = (batch["task_type"] == key).all(1)
        n = rows.sum()
        if n == 1:
            continue
        share = min(n / 10, 1.0)
        mean = share * values[rows].mean() + (1 - share) * values.mean()
        deviation = share * values[rows].std(ddof=1) + (1 - share) * values.std(ddof=1)
        if n >= 10 and deviation < 0.2:
            deviation = 1.0
        result[rows] = (values[rows] - mean) / deviation
    return result


@pytest.mark.parametrize("seed", range(3))
def test_random_batches_against_the_formulas(seed: int) -> None:
    batch = random_batch(seed)
    weights = (0.4, 0.3, 0.2, 0.1)
    want = oracle(batch, weights, gamma=0.9, step_weight=0.5)
    got = total(batch, gamma=0.9)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=3e-5)
    types = batch["task_type"][:, 1]
    counts = [np.sum(types == number) for number in range(4)]
    assert counts[0] >= 10 > counts[1] > 1 == counts[2]
    # The weak type is not blown up to a deviation of 1.
    assert 0.0 < got[types == 3].std(ddof=1) < 0.2
