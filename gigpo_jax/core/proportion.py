"""The interval of a proportion, such as the fraction of tasks that are solved."""

import math

Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Returns the 95% Wilson score interval of a proportion, (0, 1) without trials.

    Source: Wilson 1927; Brown, Cai, DasGupta 2001, equation 4.
    """
    if trials == 0:
        return 0.0, 1.0
    fraction = successes / trials
    # Wilson and not the normal interval: it stays in [0, 1], and has a width where all
    # or none succeed.
    z2 = Z95 * Z95
    scale = 1 + z2 / trials
    centre = (fraction + z2 / (2 * trials)) / scale
    spread = math.sqrt(fraction * (1 - fraction) / trials + z2 / (4 * trials * trials))
    half = Z95 * spread / scale
    return max(0.0, centre - half), min(1.0, centre + half)
