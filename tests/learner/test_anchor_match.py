"""`rl.anchor_match`: which steps of a task group count as the same state."""

from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np

from gigpo_jax.env_bridge.types import Task, anchor_hash
from gigpo_jax.learner import similarity
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.turns import make_turn

WORDS = [f"word{n}" for n in range(12)]


def trajectories(seed: int, groups: int = 4, members: int = 3, steps: int = 4) -> list[Trajectory]:
    """Episodes whose anchors are near copies: many pairs lie near the threshold."""
    rng = np.random.default_rng(seed)
    episodes = []
    for group in range(groups):
        for member in range(members):
            texts = []
            for _ in range(steps):
                words = list(WORDS)
                for _ in range(int(rng.integers(0, 3))):
                    words[int(rng.integers(len(words)))] = "other"
                texts.append(" ".join(words))
            task = Task(f"t{group}", "", "train")
            episodes.append(
                Trajectory(task, group, member, [make_turn(anchor=text) for text in texts])
            )
    return episodes


def greedy(rows: list[tuple[int, str]], threshold: float) -> list[tuple[int, int]]:
    """The definition: (group, anchor) in row order -> hash of the cluster's first member."""
    firsts: dict[int, list[str]] = {}
    lanes = []
    for group, state in rows:
        heads = firsts.setdefault(group, [])
        first = next(
            (f for f in heads if SequenceMatcher(None, state, f).ratio() >= threshold), None
        )
        if first is None:
            heads.append(state)
            first = state
        lanes.append(anchor_hash(first))
    return lanes


def test_similar_anchors_are_the_greedy_clusters_of_each_task_group() -> None:
    for seed in range(3):
        played = trajectories(seed)
        played[4] = replace(played[4], aborted=True)  # takes part in nothing
        rows = [(t.group, turn.anchor) for t in played if not t.aborted for turn in t.turns]
        steps = finished_steps(played)
        inputs = step_columns(steps, similarity=0.9)
        assert [tuple(lane) for lane in inputs.anchor[: len(rows)].tolist()] == greedy(rows, 0.9)
        assert not inputs.anchor[len(rows) :].any()
        exact = step_columns(steps)
        kinds = [len(np.unique(x.anchor[: len(rows)], axis=0)) for x in (inputs, exact)]
        assert kinds[0] < kinds[1] == len({anchor for _, anchor in rows})
        for name in ("reward", "penalty", "trajectory", "step", "group", "mask"):
            np.testing.assert_array_equal(getattr(inputs, name), getattr(exact, name))


def test_worker_processes_give_the_same(monkeypatch) -> None:
    steps = finished_steps(trajectories(5))
    one_process = step_columns(steps, similarity=0.9)
    monkeypatch.setattr(similarity, "WORTH_WORKERS", 1)
    monkeypatch.setattr(similarity.os, "cpu_count", lambda: 2)
    np.testing.assert_array_equal(step_columns(steps, similarity=0.9).anchor, one_process.anchor)
