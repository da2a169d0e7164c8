"""Agreement of estimated and measured advantages. Pure numpy.

A measured advantage is the true one plus noise of a known standard error. Noise lowers every
correlation by the root of the reliability, the share of the measured variance that is not noise:

    reliability = 1 - mean(error^2) / var(measured)
    corrected = pearson / sqrt(reliability)                                        (Spearman 1904)

An estimate x = slope * true + error, the error uncorrelated with the true advantage, has error /
slope in reward units:

    noise = var(error / slope) / mean(error of the measurement ^2)
          = (1 / corrected^2 - 1) reliability / (1 - reliability)

A measurement with 1/k of the continuations has noise k. N steps, G task groups, B resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.tools.credit.intervals import Interval, Statistics, studentized_intervals

# A sign counts where the measured advantage is more than this many standard errors from 0.
CLEAR_ERRORS = 2.0
# Where all continuations agree, the error is 0 and the advantage may be a rounding error.
ROUNDING = 1e-9
RANGES = {"pearson": (-1, 1), "corrected": (-1, 1), "spearman": (-1, 1), "difference": (-2, 2)}
SHARES = ("sign", "zero", "signal")
# Sum over the steps of each task group, weighted: weights [R, G] -> sums [R].
GroupSum = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Measured:
    """Measured advantages of N steps.

    Attributes:
      advantage: [N] f64, reward units.
      error: [N] f64, standard errors of the advantages.
      group: [N] i, task group of each step.
    """

    advantage: np.ndarray
    error: np.ndarray
    group: np.ndarray

    @property
    def group_count(self) -> int:
        """Number of task groups, G."""
        return len(np.unique(self.group))


def grade(
    estimate: np.ndarray,
    measured: Measured,
    seed: int,
    baseline: np.ndarray | None = None,
) -> dict[str, Interval]:
    """Grades one estimate.

    Args:
      estimate: [N] f, estimated advantages of the measured steps.
      measured: Measured advantages.
      seed: Seed of the resamples.
      baseline: [N] f, a second estimate; adds `difference`, the corrected correlation of
        `estimate` minus the one of `baseline`, on the same resamples.

    Returns:
      `pearson`, `corrected`, `spearman`: correlations; `noise`: see above, infinite without a
      positive correlation; `sign`: share of the steps with a clear measured sign at which the
      estimate has that sign, a zero counts half; `zero`: share of the steps whose estimate is 0.
      NaN where a value is not defined.
    """
    statistics = estimate_statistics(estimate, measured)
    if baseline is not None:
        statistics = with_difference(statistics, estimate_statistics(baseline, measured))
    ranges = RANGES | dict.fromkeys(SHARES, (0, 1))
    intervals = studentized_intervals(statistics, measured.group_count, seed, ranges)
    # Noise is infinite where the correlation is not positive, and no interval can be computed on
    # such a scale. The share of signal 1 / (1 + noise) is finite and monotone in it.
    value, lower, upper = (_noise_of(share) for share in intervals.pop("signal"))
    return intervals | {"noise": (value, upper, lower)}


def estimate_statistics(estimate: np.ndarray, measured: Measured) -> Statistics:
    """Returns the function from group weights [R, G] to the grades, a dict of [R] arrays by name.

    Ranks are computed once over the whole sample, not anew in each resample.
    """
    x = np.asarray(estimate, np.float64)
    y = measured.advantage
    # The sign of a smaller advantage is mostly the sign of its noise.
    clear = np.abs(y) > np.maximum(CLEAR_ERRORS * measured.error, ROUNDING)
    # No credit is as good as a coin: otherwise an estimate that is mostly 0 would look wrong.
    agreement = np.where(x == 0, 0.5, np.sign(x) == np.sign(y))
    _, group = np.unique(measured.group, return_inverse=True)

    # Every grade is a function of sums over groups. These are taken once, and 1000 resamples then
    # cost a product of [R, G] with [G] for each sum.
    def group_sum(values: np.ndarray) -> GroupSum:
        sums = np.bincount(group, values, measured.group_count)
        return lambda weights: weights @ sums

    count = group_sum(np.ones(len(y)))
    correlation = _correlation(group_sum, x, y)
    # Ranks within each resample would need a sort for each of them.
    rank_correlation = _correlation(group_sum, ranks(x), ranks(y))
    # Squares of a large mean would lose the digits of the variance.
    centred = y - y.mean()
    y_sum = group_sum(centred)
    y_squares = group_sum(centred**2)
    error_squares = group_sum(measured.error**2)
    clear_count = group_sum(clear.astype(np.float64))
    clear_agreement = group_sum(clear * agreement)
    zero_count = group_sum((x == 0).astype(np.float64))

    def statistics(weights: np.ndarray) -> dict[str, np.ndarray]:
        steps = count(weights)
        pearson = correlation(weights)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = (y_squares(weights) - y_sum(weights) ** 2 / steps) / (steps - 1)
            share = 1 - error_squares(weights) / steps / variance
            # The measured advantages vary no more than their noise: nothing can be corrected.
            share = np.where(share > 0, share, np.nan)
            corrected = pearson / np.sqrt(share)
            # 0 ** -2 is infinite, and the signal below becomes 0.
            noise = (np.where(corrected > 0, corrected, 0.0) ** -2 - 1) * share / (1 - share)
            return {
                "pearson": pearson,
                "corrected": corrected,
                "signal": np.where(np.isnan(corrected), np.nan, 1 / (1 + noise)),
                "spearman": rank_correlation(weights),
                "sign": clear_agreement(weights) / clear_count(weights),
                "zero": zero_count(weights) / steps,
            }

    return statistics


def with_difference(statistics: Statistics, baseline: Statistics) -> Statistics:
    """Adds `difference`, the corrected correlation minus the baseline's corrected correlation."""

    def add_difference(weights: np.ndarray) -> dict[str, np.ndarray]:
        values = statistics(weights)
        difference = values["corrected"] - baseline(weights)["corrected"]
        return values | {"difference": difference}

    return add_difference


def reliability(measured: Measured) -> float:
    """Share of the measured variance that is not noise; NaN where advantages do not vary."""
    if len(measured.advantage) < 2:
        return float("nan")
    variance = float(np.var(measured.advantage, ddof=1))
    if variance == 0:
        return float("nan")
    return 1 - float(np.mean(measured.error**2)) / variance


def cosine(estimate: np.ndarray, halves: Sequence[np.ndarray], seed: int) -> dict[str, Interval]:
    """Cosine of the policy gradients from estimated and from measured advantages.

    Noise makes the measured gradient longer, and the cosine smaller; the product of two gradients
    from independent halves of the continuations does not have that bias.

    Args:
      estimate: [G, P] f, one gradient (or a sketch of it) for each task group; the policy gradient
        is their sum.
      halves: Two arrays like `estimate`, each from one half of the continuations.
      seed: Seed of the resamples.

    Returns:
      `cosine`, and `cosine_corrected` for the noise of the measured gradient.
    """
    # The errors of the halves are independent, so their inner product has no bias. That of the mean
    # with itself is larger by the variance of its noise.
    first, second = halves
    mean = (first + second) / 2

    def inner_product(a: np.ndarray, b: np.ndarray) -> GroupSum:
        # [G, G] once: a resample then never touches the P entries of the gradients.
        products = (a @ b.T).astype(np.float64)
        return lambda weights: np.einsum("rg,gh,rh->r", weights, products, weights)

    length = inner_product(estimate, estimate)
    overlap = inner_product(estimate, mean)
    measured_length = inner_product(mean, mean)
    unbiased_length = inner_product(first, second)

    def statistics(weights: np.ndarray) -> dict[str, np.ndarray]:
        with np.errstate(invalid="ignore", divide="ignore"):
            unbiased = unbiased_length(weights)
            per_length = overlap(weights) / np.sqrt(length(weights))
            return {
                "cosine": per_length / np.sqrt(measured_length(weights)),
                # With few continuations the product of the halves can be negative: no length.
                "cosine_corrected": per_length / np.sqrt(np.where(unbiased > 0, unbiased, np.nan)),
            }

    ranges = {"cosine": (-1.0, 1.0), "cosine_corrected": (-1.0, 1.0)}
    return studentized_intervals(statistics, len(estimate), seed, ranges)


def grade_slices(
    estimate: np.ndarray, measured: Measured, slices: Mapping[str, np.ndarray], seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Grades an estimate within slices of the sample.

    Args:
      estimate: [N] f, estimated advantages of the measured steps.
      measured: Measured advantages.
      slices: [N] labels by the name of the slice, such as the task type of each step.
      seed: Seed of the resamples.

    Returns:
      name -> label -> number of steps and of task groups, and the grades of `grade`.
    """
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for name, labels in slices.items():
        table[name] = {}
        for label in np.unique(labels):
            rows = labels == label
            # Groups with no step in the slice drop out: the intervals are over the others.
            subset = Measured(measured.advantage[rows], measured.error[rows], measured.group[rows])
            size = {"steps": int(rows.sum()), "groups": subset.group_count}
            table[name][str(label)] = size | grade(estimate[rows], subset, seed)
    return table


def ranks(values: np.ndarray) -> np.ndarray:
    """[N] f64 ranks from 0; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    # The ranks of equal values run from last - counts to last - 1.
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2)[inverse]


def _correlation(
    group_sum: Callable[[np.ndarray], GroupSum], x: np.ndarray, y: np.ndarray
) -> GroupSum:
    """Pearson's correlation as a function of group weights."""
    # Without centring the sums of squares lose digits.
    x = x - x.mean()
    y = y - y.mean()
    count = group_sum(np.ones(len(x)))
    x_sum = group_sum(x)
    y_sum = group_sum(y)
    x_squares = group_sum(x * x)
    y_squares = group_sum(y * y)
    products = group_sum(x * y)

    def correlation(weights: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            steps = count(weights)
            x_total = x_sum(weights)
            y_total = y_sum(weights)
            covariance = products(weights) - x_total * y_total / steps
            x_spread = x_squares(weights) - x_total**2 / steps
            y_spread = y_squares(weights) - y_total**2 / steps
            spread = x_spread * y_spread
            # A constant estimate leaves rounding errors here, which are no correlation.
            return covariance / np.sqrt(np.where(spread > 1e-20, spread, np.nan))

    return correlation


def _noise_of(signal: float) -> float:
    if np.isnan(signal):
        return float("nan")
    return 1 / signal - 1 if signal > 0 else float("inf")
