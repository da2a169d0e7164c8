"""Means, intervals and areas against numbers worked out by hand, and against coverage."""

import numpy as np
import pytest

from gigpo_jax.tools.compare.statistics import (
    correct_p_values,
    estimate_mean,
    estimate_p_value,
    measure_area,
)


def test_the_mean_leaves_out_what_is_missing():
    assert estimate_mean(np.array([[1.0, 0.0, np.nan], [1.0, 1.0, 0.0]])).mean == pytest.approx(
        3 / 5
    )
    assert np.isnan(estimate_mean(np.full((2, 3), np.nan))).all()


def test_outcomes_that_are_all_equal_leave_no_doubt():
    assert estimate_mean(np.ones((3, 4))) == (1.0, 1.0, 1.0)


def test_with_one_seed_the_interval_is_that_of_a_proportion():
    outcomes = np.zeros((1, 400))
    outcomes[0, :100] = 1.0
    mean, low, high = estimate_mean(outcomes)
    half = 1.96 * np.sqrt(0.25 * 0.75 / 400)
    assert mean == 0.25
    assert (low, high) == pytest.approx((0.25 - half, 0.25 + half), abs=0.005)


def test_seeds_that_disagree_widen_the_interval():
    """Four seeds that win all or nothing: tasks say nothing, the mean of four coins does."""
    outcomes = np.repeat([[1.0], [1.0], [0.0], [0.0]], 1000, axis=1)
    _, low, high = estimate_mean(outcomes)
    assert (low, high) == (0.0, 1.0)  # 1 of 16 draws each
    assert (
        estimate_mean(outcomes.T.reshape(1, -1)).high < 0.52
    )  # the same outcomes as tasks of one seed


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        skill = rng.normal(0, 0.05, (8, 1))
        ease = rng.normal(0, 0.2, (1, 60))
        outcomes = (rng.random((8, 60)) < np.clip(0.5 + skill + ease, 0, 1)).astype(float)
        _, low, high = estimate_mean(outcomes, seed=trial, draws=500)
        hits += low <= 0.5 <= high
    assert hits >= 186  # 93%: the pigeonhole bootstrap errs on the wide side


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
    # The mean of every draw falls by `low`: the end of the interval is then at 0.
    assert estimate_p_value(outcomes - low) == pytest.approx(0.05, abs=0.001)
    assert estimate_p_value(low - outcomes) == pytest.approx(0.05, abs=0.001)
    assert estimate_p_value(np.ones((3, 4))) == pytest.approx(2 / 10_001)
    assert estimate_p_value(np.zeros((3, 4))) == 1.0
    assert np.isnan(estimate_p_value(np.full((1, 2), np.nan)))


def test_holm_corrects_the_smallest_most_and_keeps_the_order():
    corrected = correct_p_values(np.array([0.04, 0.01, 0.03, 0.005]))
    # 4 x 0.005; 3 x 0.01; 2 x 0.03; 1 x 0.04 is smaller than the one before it.
    np.testing.assert_allclose(corrected, [0.06, 0.03, 0.06, 0.02])
    np.testing.assert_allclose(correct_p_values(np.array([0.6, 0.9])), [1.0, 1.0])
