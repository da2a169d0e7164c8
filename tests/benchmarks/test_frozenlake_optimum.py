"""The best success on small lakes, by hand."""

import pytest

from benchmarks.frozenlake_optimum import find_best_success, reaches_goal


def test_the_best_success_is_that_of_the_best_action_at_each_number_of_steps() -> None:
    assert find_best_success(("SG",), is_slippery=False, steps=1) == 1.0
    assert find_best_success(("SFG",), is_slippery=False, steps=1) == 0.0
    # Each try succeeds with probability 1/3; the other slips stop at the edge.
    assert find_best_success(("SG",), is_slippery=True, steps=2) == pytest.approx(1 - (2 / 3) ** 2)
    # Up and left cannot reach the hole below, and up slips right with probability 1/3.
    assert find_best_success(("SG", "HH"), is_slippery=True, steps=1) == pytest.approx(1 / 3)
    assert find_best_success(("SG", "HH"), is_slippery=True, steps=2) == pytest.approx(5 / 9)


def test_a_fixed_path_ends_in_the_first_hole_or_at_the_goal() -> None:
    assert reaches_goal(("SF", "HG"), ("right", "down"))
    assert not reaches_goal(("SF", "HG"), ("down", "right"))
    assert not reaches_goal(("SF", "HG"), ("right",))
    # Moves after the goal change nothing.
    assert reaches_goal(("SG", "FF"), ("right", "down"))
