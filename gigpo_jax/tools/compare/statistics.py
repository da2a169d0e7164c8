"""Means over seeds and tasks with bootstrap intervals.

Outcomes form a table of S seeds and G tasks. Both are samples: of the possible runs, and of the
possible games of the panel. So each draw of the bootstrap resamples seeds and tasks, each with
replacement, and the interval holds the middle 95% of the means (the pigeonhole bootstrap, Owen
2007). Differences are taken pair by pair, for the same seed and task, before the draws.
"""

from typing import NamedTuple

import numpy as np

DRAWS = 10_000


class MeanEstimate(NamedTuple):
    """A mean and its 95% interval, in the outcomes' units."""

    mean: float
    low: float
    high: float


def estimate_mean(outcomes: np.ndarray, *, seed: int = 0, draws: int = DRAWS) -> MeanEstimate:
    """Estimates the mean over seeds and tasks, with its interval.

    Args:
      outcomes: Outcomes [S, G] f64, NaN where there is none. With one seed the interval is over
        tasks alone.
      seed: Seed of the draws.
      draws: Number of draws.

    Returns:
      The estimate; NaN if there are no outcomes.
    """
    mask = np.isfinite(outcomes)
    if not mask.any():
        return MeanEstimate(np.nan, np.nan, np.nan)
    low, high = np.quantile(_draw_means(outcomes, seed, draws), (0.025, 0.975))
    # The mean is that of the sample, not of the draws: an interval may lie on both sides unequally.
    return MeanEstimate(float(outcomes[mask].mean()), float(low), float(high))


def estimate_p_value(outcomes: np.ndarray) -> float:
    """The p-value, on both sides, of a mean of 0.

    It is twice the share of draws whose mean is 0 or beyond it, so it is about 5% where an end
    of the interval of `estimate_mean` is 0.

    Args:
      outcomes: Differences [S, G] f64, NaN where there is none.

    Returns:
      The p-value, at least 2 / (draws + 1); NaN if there are no outcomes.
    """
    if not np.isfinite(outcomes).any():
        return np.nan
    means = _draw_means(outcomes, seed=0, draws=DRAWS)
    # The sample itself counts as a draw: no finite number of draws shows a p-value of 0.
    smaller_tail = 1 + min(np.sum(means <= 0.0), np.sum(means >= 0.0))
    return float(min(1.0, 2.0 * smaller_tail / (len(means) + 1)))


def correct_p_values(p_values: np.ndarray) -> np.ndarray:
    """P-values corrected for their number by Holm's method.

    Those below a level are rejected at it with at most that probability of any false rejection.
    Source: Holm 1979.

    Args:
      p_values: P-values [M] f64.

    Returns:
      Corrected p-values [M] f64, at least the given ones, at most 1.
    """
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    # A larger p-value is never corrected to a smaller one.
    ascending = np.maximum.accumulate(p_values[order] * factors)
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(ascending, 1.0)
    return corrected


def _draw_means(outcomes: np.ndarray, seed: int, draws: int) -> np.ndarray:
    """Means of the draws that have an outcome.

    They are at most [draws] f64.
    """
    # A fixed seed: the same runs give the same table.
    rng = np.random.default_rng(seed)
    seeds, tasks = outcomes.shape
    mask = np.isfinite(outcomes)
    # A missing outcome adds nothing to the sum, and nothing to the count below.
    values = np.where(mask, outcomes, 0.0)
    # A resampled table is a weight for each seed and each task, so no table is built.
    seed_weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws).astype(float)
    task_weights = rng.multinomial(tasks, np.full(tasks, 1 / tasks), draws).astype(float)
    # d: draws, s: seeds, g: tasks.
    product = "ds,sg,dg->d"
    totals = np.einsum(product, seed_weights, values, task_weights, optimize=True)
    counts = np.einsum(product, seed_weights, mask.astype(float), task_weights, optimize=True)
    # A draw may contain missing outcomes only.
    return totals[counts > 0] / counts[counts > 0]


def measure_area(won: np.ndarray, iterations: np.ndarray) -> np.ndarray:
    """The mean height of each curve, by the trapezoid rule.

    With one evaluation it is its value.

    Args:
      won: Outcomes [S, E, G].
      iterations: Iterations of the evaluations [E].

    Returns:
      Mean heights [S, G]; NaN if an evaluation is missing.
    """
    if len(iterations) == 1:
        return won[:, 0]
    # Divided by the length of the run, so that the area is a success rate.
    return np.trapezoid(won, iterations, axis=1) / (iterations[-1] - iterations[0])
