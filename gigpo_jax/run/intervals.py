"""95% intervals of a proportion and of a mean."""

import math
from collections.abc import Sequence

import numpy as np

Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a proportion.

    Args:
      successes: how often it happened.
      trials: out of how many.

    Returns:
      Lower and upper bound; (0, 1) without trials.

    Source: Wilson 1927; Brown, Cai, DasGupta 2001, equation 4.
    """
    if trials == 0:
        return 0.0, 1.0
    fraction, z2 = successes / trials, Z95 * Z95
    centre = (fraction + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(fraction * (1 - fraction) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% normal interval of a mean; the mean itself twice for fewer than two values."""
    mean = float(np.mean(values)) if len(values) else 0.0
    half = Z95 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean - half, mean + half
