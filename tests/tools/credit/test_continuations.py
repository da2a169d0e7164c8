"""Continuations whose returns follow from their random keys."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.tools.credit.continuations import continue_from
from gigpo_jax.tools.credit.states import State
from gigpo_jax.trajectory import Trajectory
from tests.turns import make_turn

STATES = [State(0, Task("t", "", "train"), ("go",) * length) for length in range(5)]


async def play(job: RolloutJob) -> list[Trajectory]:
    """Two turns each; the third continuation of state 2 is aborted."""
    return [
        Trajectory(
            task,
            group,
            member,
            [make_turn(reward=10.0 * group, penalty=0.5), make_turn(reward=float(member))],
            aborted=(group, member) == (2, 2),
        )
        for group, task in enumerate(job.tasks, job.first_group)
        for member in range(job.group_size)
    ]


def test_a_stopped_measurement_plays_the_states_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "returns.jsonl"
    sizes: list[int] = []

    async def stop_at_the_second_job(job: RolloutJob) -> list[Trajectory]:
        if job.first_group:
            raise KeyboardInterrupt
        return await play(job)

    def measure(player=play) -> dict[State, np.ndarray]:
        how = {"number": 6, "at_once": 2, "progress": sizes.append}
        return asyncio.run(continue_from(STATES, path, player, **how))

    with pytest.raises(KeyboardInterrupt):
        measure(stop_at_the_second_job)
    # A kill in the middle of the second state's line.
    path.write_bytes(path.read_bytes()[:-7])
    returns = measure()
    assert sizes == [0, 2, 1, 2, 2]
    for number, state in enumerate(STATES):
        members = [member for member in range(6) if (number, member) != (2, 2)]
        expected = [10 * number + member - 0.5 for member in members]
        assert returns[state].tolist() == expected
    again = measure(stop_at_the_second_job)
    assert [again[state].tolist() for state in STATES] == [
        returns[state].tolist() for state in STATES
    ]
