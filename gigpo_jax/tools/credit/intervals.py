"""95% intervals over task groups: a symmetric bootstrap-t.

The steps of a task group share its task and its baseline, so groups are resampled, not steps. With
few groups the percentile bootstrap is too short: in the simulated world of
tests/tools/credit/test_intervals.py its 95% intervals hold the truth in 67% (4 groups) to 88% (48).
The bootstrap-t (Efron and Tibshirani 1993, section 12.5) divides the deviation of each resample by
the resample's own standard error, here from a jackknife over groups. Its symmetric form (Hall
1988) holds the truth in 91% to 96% there.
"""

import functools
from collections.abc import Callable, Mapping

import numpy as np

RESAMPLES = 1000
LEVEL = 95.0
FEWEST_GROUPS = 4
Interval = tuple[float, float, float]  # value, lower bound, upper bound
# Group weights [R, G] -> values by name, each [R]; NaN where a value is not defined.
Statistics = Callable[[np.ndarray], dict[str, np.ndarray]]


def studentized_intervals(
    statistics: Statistics,
    groups: int,
    seed: int,
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, Interval]:
    """Values of the sample with their 95% intervals.

    Args:
      statistics: Values as functions of the weight of each task group.
      groups: Number of task groups, G.
      seed: Seed of the resamples.
      ranges: Smallest and largest possible value by name; bounds are cut there.

    Returns:
      name -> (value, lower, upper). Bounds are NaN with fewer than four groups, or where the value
      is not defined.
    """
    # A sample in which each group counts once.
    sample = statistics(np.ones((1, groups)))
    values = {name: float(array[0]) for name, array in sample.items()}
    # The margins would rest on three numbers or fewer.
    if groups < FEWEST_GROUPS:
        return {name: (value, float("nan"), float("nan")) for name, value in values.items()}
    margins = _margins(statistics, groups, seed, values)
    intervals = {}
    for name, value in values.items():
        lowest, highest = ranges[name]
        # A value corrected for noise can itself leave the range; its interval then ends there.
        lower = max(value - margins[name], min(lowest, value))
        upper = min(value + margins[name], max(highest, value))
        intervals[name] = (value, float(lower), float(upper))
    return intervals


def _margins(
    statistics: Statistics, groups: int, seed: int, values: Mapping[str, float]
) -> dict[str, float]:
    """Half the length of each interval."""
    # A resample is the counts of its groups. Grades are functions of sums over groups, so all
    # resamples are one product of [B, G] with [G].
    draws = _group_counts(groups, seed)
    resamples = statistics(draws)
    # Row g leaves group g out: the jackknife of the sample itself.
    reduced = statistics(1 - np.eye(groups))
    # The jackknife of every resample. A group that was drawn k times is k units, and leaving out
    # any of them gives the same value: one pass a group, weighted by k.
    squares = {name: np.zeros(RESAMPLES) for name in values}
    for group in range(groups):
        counts = draws[:, group]
        remaining = draws.copy()
        remaining[:, group] = np.maximum(counts - 1, 0)
        for name, array in statistics(remaining).items():
            # A reduced resample may be constant, with no correlation: it adds nothing.
            squares[name] += counts * np.nan_to_num(array - resamples[name]) ** 2
    factor = (groups - 1) / groups
    margins = {}
    for name, value in values.items():
        error = np.sqrt(factor * np.nansum((reduced[name] - value) ** 2))
        # A resample of one group alone has a standard error of 0 and is dropped.
        with np.errstate(invalid="ignore", divide="ignore"):
            # The absolute value makes the interval symmetric; signed deviations would give two
            # tails.
            deviations = np.abs(resamples[name] - value) / np.sqrt(factor * squares[name])
        deviations = deviations[np.isfinite(deviations)]
        # All groups agree, or the value is not defined at all.
        if error == 0:
            margins[name] = 0.0 if np.isfinite(value) else float("nan")
        elif len(deviations):
            margins[name] = float(error * np.percentile(deviations, LEVEL))
        else:
            margins[name] = float("nan")
    return margins


@functools.cache
def _group_counts(groups: int, seed: int) -> np.ndarray:
    """[B, G] f64: how often each resample draws each group."""
    # Cached: all estimates of a table are graded on the same resamples. Callers must not write
    # here.
    rng = np.random.default_rng(seed)
    return rng.multinomial(groups, np.full(groups, 1 / groups), RESAMPLES).astype(np.float64)
