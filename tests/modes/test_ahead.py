"""Rollouts that run ahead of the learner, and what a checkpoint's record brings back."""

import asyncio
import collections
import json
from types import SimpleNamespace
from typing import Any

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.modes import train
from gigpo_jax.modes.ahead import play_again
from gigpo_jax.run.hosts import Hosts


def make_trainer(done: int, staleness: int, iterations: int = 100) -> Any:
    """What rollouts need of a trainer; weights that the worker gets are listed."""
    trainer: Any = object.__new__(train.Trainer)
    trainer.config = default_config()
    trainer.config.train.max_staleness, trainer.config.train.iterations = staleness, iterations
    trainer.hosts = Hosts()
    trainer.done = done
    trainer.rollouts = collections.deque()
    trainer.pushes = []
    trainer.worker = SimpleNamespace(
        snapshot=lambda: "a snapshot",
        update_weights=lambda params, version: trainer.pushes.append((params, version)),
    )

    async def roll_out(iteration: int, worker: Any) -> tuple[int, bool, int]:
        return iteration, worker == "a snapshot", len(trainer.pushes)

    trainer.roll_out = roll_out
    return trainer


@pytest.mark.parametrize(
    ("done", "staleness", "iterations"),
    [
        (4, 0, [4]),
        (4, 1, [4, 5]),
        (5, 2, [5, 6, 7]),
        (4, 3, [4, 5, 6, 7]),
        (8, 3, [8, 9]),
        (9, 1, [9]),
        (10, 2, []),
    ],
)
def test_no_rollout_runs_further_ahead_than_allowed_nor_behind_the_last_iteration(
    done: int, staleness: int, iterations: list[int]
) -> None:
    async def begin() -> list[tuple[int, bool, int]]:
        trainer = make_trainer(done, staleness, iterations=10)
        trainer.begin_rollouts()
        trainer.begin_rollouts()  # all have begun
        return list(await asyncio.gather(*trainer.rollouts))

    # Several that wait for the engine keep the weights that they began with.
    assert asyncio.run(begin()) == [(number, staleness > 1, 0) for number in iterations]


@pytest.mark.parametrize(("iterations", "expected"), [(100, 2), (6, 1)])
def test_a_resumed_run_plays_with_older_weights_and_goes_on_with_its_own(
    iterations: int, expected: int
) -> None:
    async def play() -> tuple[list[tuple[str, int]], list[tuple[int, bool, int]]]:
        trainer = make_trainer(5, 2, iterations)
        trainer.learner = SimpleNamespace(
            older=[(3, "c"), (4, "d")], whole_policy=str.upper, params="E"
        )
        await play_again(trainer)
        return trainer.pushes, list(await asyncio.gather(*trainer.rollouts))

    pushes, rollouts = asyncio.run(play())
    assert pushes == [*[("C", 3), ("D", 4)][:expected], ("E", 5)]
    # Each ends before the weights of the next one arrive.
    assert rollouts == [(5, True, 1), (6, True, 2)][:expected]


class Memory:
    """A source of tasks that remembers a number."""

    def __init__(self, value: int) -> None:
        self.value = value

    def record(self) -> int:
        return self.value

    def restore(self, record: Any) -> None:
        self.value = record


def test_a_resumed_run_has_what_the_checkpoint_recorded() -> None:
    saved: dict[str, Any] = {}

    def save_parts(iteration: int, parts: Any, record: Any) -> None:
        saved.update(json.loads(json.dumps({"iteration": iteration, "record": record})))

    trainer = make_trainer(7, 0)
    trainer.pending, trainer.saved = {"loss": 2.0}, 0
    trainer.writer = SimpleNamespace(step=6)
    trainer.learner = SimpleNamespace(
        checkpoint_record=lambda: {"updates": 70}, checkpoint_parts=dict
    )
    trainer.checkpoints = SimpleNamespace(save_parts=save_parts)
    trainer.sources = {"first": Memory(0), "second": Memory(3)}
    trainer.save()
    assert trainer.saved == saved["iteration"] == 7

    resumed = make_trainer(0, 0)
    records: list[Any] = []
    resumed.learner = SimpleNamespace(
        restore=lambda restored: records.append(restored["record"]["updates"]),
        checkpoint_parts=dict,
    )
    resumed.checkpoints = SimpleNamespace(restore_parts=lambda like: saved)
    resumed.sources = {"first": Memory(8), "second": Memory(9), "new": Memory(1)}
    # The record of `pending` is written again.
    assert resumed._restore() == {"step": 6, "done": 7}
    assert (resumed.done, resumed.saved, resumed.pending) == (7, 7, {"loss": 2.0})
    # A source that the checkpoint does not know begins as in a new run.
    assert [source.value for source in resumed.sources.values()] == [0, 3, 1]
    assert records == [70]
