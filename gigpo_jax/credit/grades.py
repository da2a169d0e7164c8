"""How well estimates of the advantage agree with measured ones. Pure numpy.

A measured advantage is the true one plus noise of a known standard error. Noise lowers every correlation by the root of
the reliability, the share of the measured variance that is not noise:

    reliability = 1 - mean(error^2) / var(measured)         corrected = pearson / sqrt(reliability)     (Spearman 1904)

An estimate x = slope * true + error, the error uncorrelated with the true advantage, has error / slope in reward units:

    noise = var(error / slope) / mean(measurement's error^2) = (1 / corrected^2 - 1) reliability / (1 - reliability)

A measurement with 1/k of the continuations has noise k.

Intervals are 95% percentile intervals of a bootstrap over task groups: steps of a group share its task and baseline.
Ranks are computed once, not anew in each resample. N steps, G task groups, B resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 1000
CLEAR = 2.0  # a step's sign counts where the measured advantage is more than so many standard errors from 0
Interval = tuple[float, float, float]  # value, lower and upper bound


@dataclass(frozen=True)
class Measured:
    """Measured advantages of N steps.

    Attributes:
      advantage: [N] f64, reward units.
      error: [N] f64, their standard errors.
      group: [N] i, the task group.
    """

    advantage: np.ndarray
    error: np.ndarray
    group: np.ndarray


def resampling(groups: int, seed: int) -> np.ndarray:
    """[B + 1, G] f64: how often each group is drawn; the first row is the sample itself."""
    draws = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), RESAMPLES)
    return np.concatenate([np.ones((1, groups)), draws])


def grade(estimate: np.ndarray, measured: Measured, seed: int) -> dict[str, Interval]:
    """Grades one estimate.

    Args:
      estimate: [N] f, of the same steps.
      measured: what was measured.
      seed: of the resamples; estimates that share it are compared on the same resamples.

    Returns:
      `pearson`, `corrected`, `spearman`: correlations; `noise`: see above, infinite without a positive correlation;
      `sign`: share of the steps with a clear measured sign at which the estimate has that sign, a zero counting half;
      `zero`: share of the steps whose estimate is 0. NaN where a value is not defined.
    """
    return {name: interval(values) for name, values in resampled(estimate, measured, seed).items()}


def resampled(estimate: np.ndarray, measured: Measured, seed: int) -> dict[str, np.ndarray]:
    """The grades of `grade`, each as [B + 1] f64: of the sample, then of every resample."""
    _, group = np.unique(measured.group, return_inverse=True)
    draws = resampling(int(group.max(initial=-1)) + 1, seed)

    def total(values: np.ndarray) -> np.ndarray:
        return draws @ np.bincount(group, values, draws.shape[1])

    x, y = np.asarray(estimate, np.float64), measured.advantage
    clear = np.abs(y) > CLEAR * measured.error
    agrees = np.where(x == 0, 0.5, np.sign(x) == np.sign(y))
    count = total(np.ones_like(y))
    pearson = _correlation(total, x, y)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (total(y * y) - total(y) ** 2 / count) / (count - 1)
        reliability = 1 - total(measured.error**2) / count / variance
        corrected = pearson / np.sqrt(np.where(reliability > 0, reliability, np.nan))
        noise = (np.where(corrected > 0, corrected, 0.0) ** -2 - 1) * reliability / (1 - reliability)
        return {
            "pearson": pearson,
            "corrected": corrected,
            "noise": np.where(np.isnan(corrected), np.nan, noise),
            "spearman": _correlation(total, ranks(x), ranks(y)),
            "sign": total(clear * agrees) / total(clear.astype(np.float64)),
            "zero": total((x == 0).astype(np.float64)) / count,
        }


def reliability(measured: Measured) -> float:
    """The share of the variance of the measured advantages that is not noise; NaN where they do not vary."""
    variance = float(np.var(measured.advantage, ddof=1)) if len(measured.advantage) > 1 else 0.0
    return 1 - float(np.mean(measured.error**2)) / variance if variance else float("nan")


def interval(values: np.ndarray) -> Interval:
    """The value of the sample and the interval of its resamples; those without a value are left out."""
    rest = values[1:][~np.isnan(values[1:])]
    if not len(rest):
        return float(values[0]), float("nan"), float("nan")
    # Nothing lies between a number and infinity.
    low, high = np.percentile(rest, [2.5, 97.5], method="linear" if np.isfinite(rest).all() else "nearest")
    return float(values[0]), float(low), float(high)


def cosine(estimate: np.ndarray, halves: Sequence[np.ndarray], seed: int) -> dict[str, Interval]:
    """Cosine of the policy gradient that an estimate gives and the one that the measured advantages give.

    The noise of the measured gradient makes it longer; the product of two gradients from independent halves of the
    continuations does not have that bias.

    Args:
      estimate: [G, P] f, a gradient for each task group (or a sketch of it); the policy gradient is their sum.
      halves: two of [G, P] f, likewise, each from one half of the continuations.
      seed: of the resamples.

    Returns:
      `cosine`, and `cosine_corrected` for the noise of the measured gradient.
    """
    draws = resampling(len(estimate), seed)
    first, second = halves
    mean = (first + second) / 2

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("bg,gh,bh->b", draws, (a @ b.T).astype(np.float64), draws)

    with np.errstate(invalid="ignore", divide="ignore"):
        length = np.sqrt(product(estimate, estimate))
        plain = product(estimate, mean) / (length * np.sqrt(product(mean, mean)))
        true = product(first, second)
        corrected = product(estimate, mean) / (length * np.sqrt(np.where(true > 0, true, np.nan)))
    return {"cosine": interval(plain), "cosine_corrected": interval(corrected)}


def by_slice(
    estimate: np.ndarray, measured: Measured, slices: Mapping[str, np.ndarray], seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Grades within parts of the sample.

    Args:
      estimate: [N] f.
      measured: what was measured.
      slices: name -> [N] labels, such as the task type of each step.
      seed: of the resamples.

    Returns:
      name -> label -> number of steps and the grades of `grade`.
    """
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for name, labels in slices.items():
        out[name] = {}
        for label in np.unique(labels):
            part = labels == label
            some = Measured(measured.advantage[part], measured.error[part], measured.group[part])
            out[name][str(label)] = {"steps": int(part.sum())} | grade(estimate[part], some, seed)
    return out


def ranks(values: np.ndarray) -> np.ndarray:
    """[N] f64 ranks from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2)[inverse]


def _correlation(total: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's correlation in every resample; `total` sums over the steps of each."""
    count = total(np.ones_like(y))
    x, y = x - x.mean(), y - y.mean()  # or sums of squares lose digits
    sx, sy = total(x), total(y)
    with np.errstate(invalid="ignore", divide="ignore"):
        covariance = total(x * y) - sx * sy / count
        spread = (total(x * x) - sx**2 / count) * (total(y * y) - sy**2 / count)
        return covariance / np.sqrt(np.where(spread > 1e-20, spread, np.nan))
