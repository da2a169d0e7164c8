"""Means over seeds and tasks, with intervals and p-values.

Outcomes form a table of S seeds and G tasks. Both are samples: of the possible runs, and of the
possible games of the panel. So an outcome is a mean, plus an effect of its seed, plus an effect of
its task, plus a residual (crossed random effects); the variance of the mean follows from the three
mean squares, its degrees of freedom from Satterthwaite 1946. Nothing is drawn, so a number near a
limit is the same with every computation. Differences are taken pair by pair, for the same seed and
task, before the fit.

Earlier texts have the pigeonhole bootstrap (Owen 2007), which resamples seeds and tasks. Its
intervals are too wide where seeds agree and too narrow where few seeds disagree; the report keeps
them beside the new ones.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

DRAWS = 10_000
# All sign patterns of more seeds would not fit in memory at once.
MAX_FLIPPED_SEEDS = 20


class MeanEstimate(NamedTuple):
    """A mean and its 95% interval, in the outcomes' units."""

    mean: float
    low: float
    high: float


class MeanFit(NamedTuple):
    """A mean, its standard error and degrees of freedom."""

    mean: float
    error: float
    freedom: float


def fit_mean(outcomes: np.ndarray) -> MeanFit:
    """Fits a mean with effects of seeds and tasks.

    Args:
      outcomes: Outcomes [S, G] f64, NaN where there is none. With one seed the error is that over
        tasks alone, with one task that over seeds.

    Returns:
      The fit; its error is NaN with a single outcome, and all is NaN without one.
    """
    mask = np.isfinite(outcomes)
    if not mask.any():
        return MeanFit(np.nan, np.nan, np.nan)
    # A seed or a task without any outcome says nothing.
    outcomes = outcomes[mask.any(axis=1)][:, mask.any(axis=0)]
    mask = np.isfinite(outcomes)
    mean = float(outcomes[mask].mean())
    seeds, tasks = outcomes.shape
    if outcomes.size == 1:
        return MeanFit(mean, np.nan, np.nan)
    seed_freedom = seeds - 1
    task_freedom = tasks - 1
    residual_freedom = max(1, int(mask.sum()) - seeds - tasks + 1)
    table = _fill_missing(outcomes, mask)
    row_effects = table.mean(axis=1, keepdims=True) - table.mean()
    column_effects = table.mean(axis=0, keepdims=True) - table.mean()
    residuals = table - table.mean() - row_effects - column_effects
    seed_square = tasks * np.sum(row_effects**2) / max(1, seed_freedom)
    task_square = seeds * np.sum(column_effects**2) / max(1, task_freedom)
    residual_square = np.sum(residuals**2) / residual_freedom
    if seeds == 1 or tasks == 1:
        variance = task_square if seeds == 1 else seed_square
        freedom = float(max(seed_freedom, task_freedom))
    else:
        variance = seed_square + task_square - residual_square
        terms = (
            seed_square**2 / seed_freedom
            + task_square**2 / task_freedom
            + residual_square**2 / residual_freedom
        )
        # Satterthwaite's value may be below the seeds' value, since one square is subtracted.
        freedom = max(variance**2 / terms, seed_freedom) if terms else float(seed_freedom)
        # A variance that is estimated below 0 counts as 0: seeds that agree by chance do not make
        # the error smaller than the error of tasks alone, nor the other way round.
        if variance < max(seed_square, task_square):
            variance = max(seed_square, task_square)
            freedom = float(seed_freedom if seed_square > task_square else task_freedom)
    return MeanFit(mean, float(np.sqrt(variance / mask.sum())), float(freedom))


def _fill_missing(outcomes: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Fills missing outcomes from their seeds and tasks, [S, G]."""
    table = np.where(mask, outcomes, outcomes[mask].mean())
    if mask.all():
        return table
    # The effects depend on what is filled in; this converges fast where few outcomes are missing.
    for _ in range(50):
        rows = table.mean(axis=1, keepdims=True)
        columns = table.mean(axis=0, keepdims=True)
        table = np.where(mask, outcomes, rows + columns - table.mean())
    return table


def estimate_mean(outcomes: np.ndarray) -> MeanEstimate:
    """Estimates the mean over seeds and tasks by `fit_mean`.

    Args:
      outcomes: Outcomes [S, G] f64, NaN where there is none.
    """
    return make_interval(fit_mean(outcomes))


def make_interval(fit: MeanFit) -> MeanEstimate:
    """The 95% interval of a fit, by Student's t."""
    half_width = float(stdtrit(fit.freedom, 0.975)) * fit.error
    return MeanEstimate(fit.mean, fit.mean - half_width, fit.mean + half_width)


def estimate_p_value(outcomes: np.ndarray) -> float:
    """The two-sided p-value of a mean of 0, below 5% where `estimate_mean`'s interval excludes 0.

    Args:
      outcomes: Differences [S, G] f64, NaN where there is none.

    Returns:
      The p-value; NaN if there is at most one outcome.
    """
    return find_p_value(fit_mean(outcomes))


def find_p_value(fit: MeanFit) -> float:
    """The two-sided p-value of a fit, against 0."""
    if fit.error == 0:
        return 1.0 if fit.mean == 0 else 0.0
    return float(2 * stdtr(fit.freedom, -abs(fit.mean) / fit.error))


def flip_signs(outcomes: np.ndarray) -> float:
    """The exact two-sided p-value of a mean of 0 if the sign of each seed were random.

    It is the share of all patterns of signs, one for each seed, whose mean is as far from 0 as the
    actual one. It assumes nothing about the distribution, and says nothing about other tasks.

    Args:
      outcomes: Differences [S, G] f64, NaN where there is none.

    Returns:
      The p-value, at least 2 / 2**S; NaN without outcomes, and for more than 20 seeds.
    """
    outcomes = outcomes[np.isfinite(outcomes).any(axis=1)]
    if not 0 < len(outcomes) <= MAX_FLIPPED_SEEDS:
        return np.nan
    differences = np.nanmean(outcomes, axis=1)
    # A pattern and its opposite have equal distances, so the first sign stays.
    sums = differences[:1]
    for difference in differences[1:]:
        sums = np.concatenate([sums + difference, sums - difference])
    # Sums that are equal may differ in their last bits.
    return float(np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-9))


def bootstrap_mean(outcomes: np.ndarray, *, seed: int = 0, draws: int = DRAWS) -> MeanEstimate:
    """The mean with its bootstrap interval, which texts of earlier versions have.

    Args:
      outcomes: Outcomes [S, G] f64, NaN where there is none.
      seed: Seed of the draws.
      draws: Number of draws.

    Returns:
      The estimate; NaN if there are no outcomes.
    """
    mask = np.isfinite(outcomes)
    if not mask.any():
        return MeanEstimate(np.nan, np.nan, np.nan)
    low, high = np.quantile(_draw_means(outcomes, seed, draws), (0.025, 0.975))
    # The mean of the sample, not of the draws: an interval may lie on both sides unequally.
    return MeanEstimate(float(outcomes[mask].mean()), float(low), float(high))


def correct_p_values(p_values: np.ndarray) -> np.ndarray:
    """P-values corrected for their number by Holm's method (Holm 1979).

    If all corrected values below a level are rejected, the probability of any false rejection is at
    most that level.

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
    """Means of the draws that have an outcome, f64, at most [draws]."""
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
    """The mean height of each curve, by the trapezoid rule; with one evaluation it is that value.

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
