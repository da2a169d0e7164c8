"""Means over seeds and tasks with bootstrap intervals.

Outcomes form a table of S seeds and G tasks. Both are samples: of the runs that could have been made, and of the games
that could have been on the panel. So both are drawn anew, seeds and tasks each with replacement, and every draw gives a
mean; the interval holds the middle 95% of them (the pigeonhole bootstrap, Owen 2007). Differences are taken
pair by pair, for the same seed and task, before anything is drawn.
"""

from typing import NamedTuple

import numpy as np

DRAWS = 10_000


class Estimate(NamedTuple):
    """A mean and its 95% interval, in the units of the outcomes."""

    mean: float
    low: float
    high: float


def estimate(outcomes: np.ndarray, *, seed: int = 0, draws: int = DRAWS) -> Estimate:
    """The mean of outcomes over seeds and tasks, with its interval.

    Args:
      outcomes: [S, G] f64, NaN where there is none. With one seed the interval is over tasks alone.
      seed: of the draws.
      draws: how many.

    Returns:
      NaN where there are no outcomes.
    """
    rng = np.random.default_rng(seed)
    seeds, tasks = outcomes.shape
    known = np.isfinite(outcomes)
    if not known.any():
        return Estimate(np.nan, np.nan, np.nan)
    values = np.where(known, outcomes, 0.0)
    by_seed = rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws).astype(float)
    by_task = rng.multinomial(tasks, np.full(tasks, 1 / tasks), draws).astype(float)
    total = np.einsum("ds,sg,dg->d", by_seed, values, by_task, optimize=True)
    count = np.einsum("ds,sg,dg->d", by_seed, known.astype(float), by_task, optimize=True)
    low, high = np.quantile(total[count > 0] / count[count > 0], (0.025, 0.975))
    return Estimate(float(values.sum() / known.sum()), float(low), float(high))


def area(won: np.ndarray, iterations: np.ndarray) -> np.ndarray:
    """The mean height of each curve, by the trapezoid rule: [S, E, G], [E] -> [S, G]; NaN if an evaluation is missing.

    With one evaluation it is its value.
    """
    if len(iterations) == 1:
        return won[:, 0]
    return np.trapezoid(won, iterations, axis=1) / (iterations[-1] - iterations[0])
