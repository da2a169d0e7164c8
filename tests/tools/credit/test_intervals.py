"""Coverage of the intervals of grades, in a world where the truth is known."""

import numpy as np
import pytest

from gigpo_jax.tools.credit.grades import Measured, grade
from gigpo_jax.tools.credit.intervals import studentized_intervals

STEPS = 16  # of a task group


def simulate(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray, Measured]:
    """A noisy and a finer estimate, and measured advantages, of steps in task groups.

    Groups differ in scale and in how many of their steps matter; true advantages have heavy tails.
    The steps of an episode share the error of the estimates, as they share the error of returns.
    """
    shape = (groups, STEPS)
    scale = np.exp(0.5 * rng.normal(size=(groups, 1)))
    matters = rng.random(shape) < rng.uniform(0.2, 0.9, size=(groups, 1))
    truth = scale * rng.standard_t(4, size=shape) * matters
    error = scale * rng.uniform(0.5, 1.2, size=shape)
    episode = rng.integers(8, size=shape)
    luck = 2 * rng.normal(size=(groups, 8)) * rng.exponential(size=(groups, 1))
    shared_error = scale * np.take_along_axis(luck, episode, 1)
    noisy = 0.5 * truth + shared_error + 0.3 * scale * rng.normal(size=shape)
    finer = truth + 0.5 * shared_error + 0.8 * scale * rng.normal(size=shape)
    measured = Measured(
        (truth + error * rng.normal(size=shape)).ravel(),
        error.ravel(),
        np.repeat(np.arange(groups), STEPS),
    )
    return noisy.ravel(), finer.ravel(), measured


@pytest.mark.long
@pytest.mark.parametrize("groups", [4, 6, 8, 13, 24, 48])
def test_intervals_hold_the_truth_with_few_groups_and_with_many(groups: int) -> None:
    """A percentile bootstrap holds it in 67 to 88% here; see the docstring of the module."""
    noisy, finer, population = simulate(np.random.default_rng(0), 20_000)
    true_correlation = {
        name: np.corrcoef(estimate, population.advantage)[0, 1]
        / np.sqrt(1 - np.mean(population.error**2) / np.var(population.advantage))
        for name, estimate in (("noisy", noisy), ("finer", finer))
    }
    truth = {
        "corrected": true_correlation["finer"],
        "difference": true_correlation["finer"] - true_correlation["noisy"],
    }
    hits: dict[str, list[bool]] = {name: [] for name in truth}
    rng = np.random.default_rng(groups)
    for _ in range(300):
        noisy, finer, measured = simulate(rng, groups)
        grades = grade(finer, measured, 0, baseline=noisy)
        for name, true_value in truth.items():
            _, lower, upper = grades[name]
            hits[name].append(np.isnan(lower) or lower <= true_value <= upper)
    # 300 samples: two standard errors of a coverage of 0.93 are 0.03.
    assert np.mean(hits["corrected"]) > 0.88
    assert np.mean(hits["difference"]) > 0.91


def test_the_interval_of_a_mean_is_close_to_that_of_student() -> None:
    """For a mean of normal numbers the exact interval is known."""
    rng = np.random.default_rng(0)
    lengths = []
    for _ in range(50):
        sample = rng.normal(size=12)

        def mean(weights: np.ndarray, sample: np.ndarray = sample) -> dict[str, np.ndarray]:
            return {"mean": weights @ sample / weights.sum(1)}

        intervals = studentized_intervals(mean, len(sample), 0, {"mean": (-np.inf, np.inf)})
        value, lower, upper = intervals["mean"]
        assert value == pytest.approx(sample.mean())
        student = 2 * 2.201 * sample.std(ddof=1) / np.sqrt(len(sample))
        lengths.append((upper - lower) / student)
    assert np.median(lengths) == pytest.approx(1.0, abs=0.1)


def test_too_few_groups_and_constant_values_have_no_interval_or_none_to_speak_of() -> None:
    def statistics(weights: np.ndarray) -> dict[str, np.ndarray]:
        return {"constant": np.full(len(weights), 0.5)}

    intervals = studentized_intervals(statistics, 6, 0, {"constant": (0, 1)})
    assert intervals == {"constant": (0.5, 0.5, 0.5)}
    value, lower, upper = studentized_intervals(statistics, 3, 0, {"constant": (0, 1)})["constant"]
    assert value == 0.5
    assert np.isnan([lower, upper]).all()


def test_bounds_stay_in_the_possible_range() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        noisy, finer, measured = simulate(rng, 4)
        grades = grade(finer, measured, 0, baseline=noisy)
        assert all(-1 <= bound <= 1 for bound in grades["pearson"])
        value, lower, upper = grades["corrected"]
        if np.isfinite(value):
            assert -1 <= lower <= value <= upper <= max(1.0, value)
