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
    # A fixed seed: the same runs give the same table.
    rng = np.random.default_rng(seed)
    seeds, tasks = outcomes.shape
    mask = np.isfinite(outcomes)
    if not mask.any():
        return MeanEstimate(np.nan, np.nan, np.nan)
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
    means = totals[counts > 0] / counts[counts > 0]
    low, high = np.quantile(means, (0.025, 0.975))
    # The mean is that of the sample, not of the draws: an interval may lie on both sides unequally.
    return MeanEstimate(float(values.sum() / mask.sum()), float(low), float(high))


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
