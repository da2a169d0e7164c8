"""Grades against numpy, and against what is known of noisy measurements."""

import numpy as np
import pytest

from gigpo_jax.tools.credit.grades import Measured, cosine, grade, grade_slices, ranks, reliability


def sample(n: int = 4000, groups: int = 200, noise: float = 0.8) -> tuple[np.ndarray, Measured]:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=n)
    error = noise * rng.uniform(0.5, 1.5, n)
    return truth, Measured(truth + error * rng.normal(size=n), error, rng.integers(groups, size=n))


def test_correlations_are_those_of_numpy_on_the_sample_itself() -> None:
    truth, measured = sample(200)
    estimate = truth + np.random.default_rng(1).normal(size=200)
    got = grade(estimate, measured, 0)
    expected = np.corrcoef(estimate, measured.advantage)[0, 1]
    assert got["pearson"][0] == pytest.approx(expected)
    assert got["corrected"][0] == pytest.approx(expected / np.sqrt(reliability(measured)))
    order = [np.argsort(np.argsort(x)) for x in (estimate, measured.advantage)]
    assert got["spearman"][0] == pytest.approx(np.corrcoef(*order)[0, 1])
    assert all(low <= value <= high for value, low, high in got.values())


def test_the_correction_recovers_the_correlation_with_the_truth() -> None:
    truth, measured = sample()
    estimate = truth + 1.5 * np.random.default_rng(1).normal(size=len(truth))
    value, low, high = grade(estimate, measured, 0)["corrected"]
    expected = np.corrcoef(estimate, truth)[0, 1]
    assert value == pytest.approx(expected, abs=0.03)
    assert low < expected < high
    assert 0.02 < high - low < 0.12


def test_the_noise_of_an_estimate_is_that_of_its_error_in_units_of_the_measurements() -> None:
    truth, measured = sample()
    rng = np.random.default_rng(1)
    expected = 1.5**2 / np.mean(measured.error**2)
    estimate = truth + 1.5 * rng.normal(size=len(truth))
    value, low, high = grade(estimate, measured, 0)["noise"]
    assert value == pytest.approx(expected, rel=0.1)
    assert low < expected < high
    assert grade(7 * estimate, measured, 0)["noise"] == pytest.approx((value, low, high))
    again = measured.error * rng.normal(
        size=len(truth)
    )  # a second measurement, of a quarter of the continuations
    assert grade(truth + 2 * again, measured, 0)["noise"][0] == pytest.approx(4.0, rel=0.15)
    assert grade(-truth, measured, 0)["noise"] == (np.inf, np.inf, np.inf)
    assert np.isnan(grade(np.zeros(4000), measured, 0)["noise"][0])


def test_intervals_follow_the_groups_not_the_steps() -> None:
    """Copies of a step in its group add nothing."""
    truth, measured = sample(400, 40)
    copies = Measured(
        *(np.repeat(x, 25) for x in (measured.advantage, measured.error, measured.group))
    )
    estimate = truth + np.random.default_rng(1).normal(size=400)
    one, many = (
        grade(*args, 0)["pearson"]
        for args in ((estimate, measured), (np.repeat(estimate, 25), copies))
    )
    assert many == pytest.approx(one, abs=1e-6)


def test_signs_and_zeros() -> None:
    measured = Measured(np.array([3.0, -3.0, 3.0, 0.1]), np.ones(4), np.arange(4))
    got = grade(np.array([1.0, 1.0, 0.0, -1.0]), measured, 0)
    assert got["sign"][0] == pytest.approx(
        (1 + 0 + 0.5) / 3
    )  # the fourth is not clear, the third has no sign
    assert got["zero"][0] == 0.25
    silent = grade(np.zeros(4), measured, 0)
    assert np.isnan(silent["corrected"][0])
    assert (silent["sign"][0], silent["zero"][0]) == (0.5, 1.0)


def test_a_rounding_error_without_noise_is_no_clear_sign() -> None:
    advantage = np.array([1.0, -1.0, 1e-16, -1e-16])
    measured = Measured(advantage, np.array([0.1, 0.1, 0.0, 0.0]), np.arange(4))
    assert grade(np.array([1.0, -1.0, -1.0, 1.0]), measured, 0)["sign"][0] == 1.0


def test_equal_values_share_their_rank() -> None:
    np.testing.assert_array_equal(ranks(np.array([5.0, 1.0, 5.0, 9.0])), [1.5, 0.0, 1.5, 3.0])


def test_the_cosine_is_corrected_for_the_noise_of_the_measured_gradient() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(12, 3000))
    halves = [true + 1.5 * rng.normal(size=true.shape) for _ in range(2)]
    estimate = true + rng.normal(size=true.shape)
    got = cosine(estimate, halves, 0)
    expected = (
        (estimate.sum(0) @ true.sum(0))
        / np.linalg.norm(estimate.sum(0))
        / np.linalg.norm(true.sum(0))
    )
    assert got["cosine_corrected"][0] == pytest.approx(expected, abs=0.05)
    assert got["cosine"][0] < expected - 0.1


def test_slices_are_grades_of_their_steps() -> None:
    truth, measured = sample(300, 30)
    labels = np.where(np.arange(300) % 3, "a", "b")
    part = labels == "b"
    alone = Measured(measured.advantage[part], measured.error[part], measured.group[part])
    got = grade_slices(truth, measured, {"letter": labels}, 0)
    assert got["letter"]["b"] == {"steps": 100, "groups": alone.group_count} | grade(
        truth[part], alone, 0
    )
