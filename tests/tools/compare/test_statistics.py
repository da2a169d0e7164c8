"""Means, intervals and areas against numbers worked out by hand, and against coverage."""

import numpy as np
import pytest

from gigpo_jax.tools.compare.statistics import (
    bootstrap_mean,
    correct_p_values,
    estimate_mean,
    estimate_p_value,
    fit_mean,
    flip_signs,
    measure_area,
)


def test_the_mean_leaves_out_what_is_missing():
    assert estimate_mean(np.array([[1.0, 0.0, np.nan], [1.0, 1.0, 0.0]])).mean == pytest.approx(
        3 / 5
    )
    assert np.isnan(estimate_mean(np.full((2, 3), np.nan))).all()
    assert np.isnan(bootstrap_mean(np.full((2, 3), np.nan))).all()


def test_outcomes_that_are_all_equal_leave_no_doubt():
    assert estimate_mean(np.ones((3, 4))) == (1.0, 1.0, 1.0)
    assert bootstrap_mean(np.ones((3, 4))) == (1.0, 1.0, 1.0)
    assert estimate_p_value(np.ones((3, 4))) == 0.0
    assert estimate_p_value(np.zeros((3, 4))) == 1.0


def test_the_fit_is_that_of_the_mean_squares():
    """Mean squares of seeds 1, of tasks 4, of the residual 0, each with one degree of freedom."""
    fit = fit_mean(np.array([[3.0, 1.0], [2.0, 0.0]]))
    assert fit == pytest.approx((1.5, np.sqrt(5 / 4), 25 / 17))


def test_seeds_that_agree_by_chance_leave_the_error_of_tasks():
    """Both seeds have the mean 0: their mean square is 0, the tasks' 0.5, the residual 3.5."""
    table = np.array([[1.0, -2.0, 1.0], [-1.0, 1.0, 0.0]])
    fit = fit_mean(table)
    assert fit == pytest.approx((0.0, np.sqrt(0.5 / 6), 2.0))


def test_a_missing_outcome_is_filled_from_its_seed_and_task():
    """Without residual the filled table is the whole one, and only the number of outcomes falls."""
    whole = np.array([[3.0, 1.0, 2.0], [2.0, 0.0, 1.0]])
    missing = np.array([[3.0, 1.0, 2.0], [2.0, 0.0, np.nan]])
    assert fit_mean(missing).mean == pytest.approx(8 / 5)
    assert fit_mean(missing).error == pytest.approx(fit_mean(whole).error * np.sqrt(6 / 5))
    # A seed without outcomes is no seed.
    empty = np.full((1, 3), np.nan)
    assert fit_mean(np.concatenate([whole, empty])) == fit_mean(whole)


def test_with_one_seed_the_interval_is_that_of_a_proportion():
    outcomes = np.zeros((1, 400))
    outcomes[0, :100] = 1.0
    half = 1.96 * np.sqrt(0.25 * 0.75 / 400)
    for estimate in (estimate_mean(outcomes), bootstrap_mean(outcomes)):
        assert estimate == pytest.approx((0.25, 0.25 - half, 0.25 + half), abs=0.005)


def test_seeds_that_disagree_widen_the_interval():
    """Four seeds that win all or nothing: tasks say nothing, the t-interval of four coins does."""
    outcomes = np.repeat([[1.0], [1.0], [0.0], [0.0]], 1000, axis=1)
    half = 3.182 * np.sqrt(1 / 3 / 4)  # t of 3 degrees of freedom
    assert estimate_mean(outcomes) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-3)
    assert bootstrap_mean(outcomes)[1:] == (0.0, 1.0)  # 1 of 16 draws each
    # The same outcomes as tasks of one seed.
    assert estimate_mean(outcomes.T.reshape(1, -1)).high < 0.52


@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize(
    ("seed_deviation", "task_deviation"), [(0.0, 0.25), (0.03, 0.2), (0.06, 0.2), (0.15, 0.1)]
)
def test_intervals_hold_the_truth_as_often_as_they_say(
    seeds: int, seed_deviation: float, task_deviation: float
):
    """Differences of won and lost games, as in the experiments: F of the seeds from 1 to 8."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(600):
        table = rng.choice([-1.0, 0.0, 1.0], p=[0.2, 0.6, 0.2], size=(seeds, 128))
        table += rng.normal(0, seed_deviation, (seeds, 1)) + rng.normal(0, task_deviation, 128)
        _, low, high = estimate_mean(table)
        hits += low <= 0.0 <= high
    # The standard error of the share is 0.9 points.
    assert 0.92 <= hits / 600 <= 0.98


def test_the_bootstrap_is_too_narrow_where_three_seeds_disagree():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        table = rng.choice([-1.0, 0.0, 1.0], p=[0.2, 0.6, 0.2], size=(3, 128))
        table += rng.normal(0, 0.15, (3, 1))
        _, low, high = bootstrap_mean(table, seed=trial, draws=300)
        hits += low <= 0.0 <= high
    assert hits < 180


def test_the_area_is_the_mean_height():
    won = np.array([[[0.0], [1.0], [1.0]]])  # one seed, one task
    assert measure_area(won, np.array([0, 10, 20])) == pytest.approx(0.75)
    assert measure_area(won, np.array([0, 10, 40])) == pytest.approx((5 + 30) / 40)
    assert measure_area(won[:, :1], np.array([5])) == 0.0
    assert np.isnan(measure_area(np.array([[[np.nan], [1.0]]]), np.array([0, 1])))


def test_a_p_value_is_below_a_level_where_the_interval_excludes_zero():
    rng = np.random.default_rng(0)
    outcomes = rng.normal(0.3, 1.0, (8, 40))
    _, low, _ = estimate_mean(outcomes)
    # The end of the interval is then at 0.
    assert estimate_p_value(outcomes - low) == pytest.approx(0.05, abs=1e-9)
    assert estimate_p_value(low - outcomes) == pytest.approx(0.05, abs=1e-9)
    assert np.isnan(estimate_p_value(np.full((1, 2), np.nan)))


def test_the_signs_of_seeds_are_flipped_exactly():
    # Of the 8 patterns of 1, 2 and 3, the sums 6, 4, -4 and -6 are as far from 0 as 4.
    assert flip_signs(np.array([[-1.0], [2.0], [3.0]])) == 4 / 8
    # Five seeds that agree: this and the opposite pattern.
    assert flip_signs(np.array([[0.1, 0.3], [0.2, 0.2], [0.1, 0.1], [0.3, 0.1], [0.2, 0.4]])) == (
        2 / 32
    )
    assert flip_signs(np.zeros((4, 2))) == 1.0
    assert np.isnan(flip_signs(np.ones((21, 1))))
    assert np.isnan(flip_signs(np.full((2, 2), np.nan)))


def test_holm_corrects_the_smallest_most_and_keeps_the_order():
    # An order that is not its own inverse.
    corrected = correct_p_values(np.array([0.03, 0.005, 0.04, 0.01]))
    # 4 x 0.005; 3 x 0.01; 2 x 0.03; 1 x 0.04 is smaller than the one before it.
    np.testing.assert_allclose(corrected, [0.06, 0.02, 0.06, 0.03])
    np.testing.assert_allclose(correct_p_values(np.array([0.6, 0.9])), [1.0, 1.0])
