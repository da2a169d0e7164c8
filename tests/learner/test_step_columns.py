"""Columns of steps: which there are, and their lengths."""

import dataclasses

import numpy as np
import pytest

from gigpo_jax.env_bridge.types import Task, anchor_hash
from gigpo_jax.learner.step_columns import (
    bucket,
    neighbour_buckets,
    resize_columns,
    step_columns,
)
from gigpo_jax.rl.types import StepColumns
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.turns import make_step, make_turn


def test_optional_columns_are_collected_only_where_needed():
    optional = {field.name for field in dataclasses.fields(StepColumns) if field.default is None}
    rows = [("a", 4, 0), ("a", 4, 1), ("b", 4, 2), ("c", 7, 0), ("a", 7, 1)]
    steps = [
        make_step(trajectory, number, make_turn(action=f"go {n}", anchor=anchor))
        for n, (anchor, trajectory, number) in enumerate(rows)
    ]
    plain = step_columns(steps)
    assert {name for name, column in vars(plain).items() if column is None} == optional
    entropy = np.arange(5, dtype=np.float32)
    columns = step_columns(
        steps, needs=("action", "next_anchor", "entropy"), computed={"entropy": entropy}
    )
    assert {name for name, column in vars(columns).items() if column is None} == optional - {
        "action",
        "next_anchor",
        "entropy",
    }
    np.testing.assert_array_equal(columns.action[:5], [anchor_hash(f"go {n}") for n in range(5)])
    next_anchors = [anchor_hash("a"), anchor_hash("b"), (0, 0), anchor_hash("a"), (0, 0)]
    np.testing.assert_array_equal(columns.next_anchor[:5], next_anchors)
    np.testing.assert_array_equal(columns.entropy[:5], entropy)
    order = [3, 1, 4, 2, 0]
    again = step_columns([steps[row] for row in order], needs=("next_anchor",))
    np.testing.assert_array_equal(again.next_anchor[:5], columns.next_anchor[:5][order])


def test_ends_of_episodes_are_columns():
    """The first episode is won, the second is lost at the limit, the third one earlier."""
    ends = [(True, False), (False, True), (False, False)]
    trajectories = [
        Trajectory(
            Task("0", "look", "train"),
            0,
            member,
            turns=[make_turn(), make_turn()],
            won=won,
            truncated=truncated,
        )
        for member, (won, truncated) in enumerate(ends)
    ]
    columns = step_columns(finished_steps(trajectories), needs=("won", "truncated"))
    assert columns.won[:6].tolist() == [True, True, False, False, False, False]
    assert columns.truncated[:6].tolist() == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("size", "most_steps", "sizes"),
    [(1536, 1152, [1024]), (1024, 1152, [768, 1536]), (256, 100, []), (256, 9999, [384])],
)
def test_columns_of_the_next_iterations_have_neighbouring_lengths(
    size: int, most_steps: int, sizes: list[int]
) -> None:
    assert neighbour_buckets(size, most_steps) == sizes
    assert all(bucket(other) == other for other in sizes)


def test_resized_columns_keep_their_first_rows() -> None:
    columns = step_columns([])
    columns = dataclasses.replace(columns, reward=np.arange(256, dtype=np.float32))
    for other in (128, 384):
        resized = resize_columns(columns, other)
        assert len(resized.mask) == len(resized.anchor) == other
        assert resized.reward[:128].tolist() == list(range(128))
        assert resized.action is None
