"""Trajectories on disk."""

import json
import pathlib

import numpy as np
import pytest

from gigpo_jax.env_bridge.types import Task, anchor_hash
from gigpo_jax.trajectory import Trajectory, Turn, finished_steps, write_trajectories

NASTY = '"\\ \n\r\u2028\x00\x1b[31m </script> \ud800 \u6211'


def turn(reward: float) -> Turn:
    return Turn(
        prompt_tokens=np.arange(4, dtype=np.int32),
        response_tokens=np.arange(3, dtype=np.int32),
        logprobs=np.zeros(3, np.float32),
        prompt="prompt " + NASTY,
        response="response " + NASTY,
        action=NASTY,
        valid=True,
        admissible=None,
        observation=NASTY,
        anchor="anchor",
        reward=reward,
        penalty=0.0,
        finish_reason="stop",
        version=3,
    )


def test_lines_are_ascii_json_that_gives_every_text_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rollouts" / "iteration_000012.jsonl"
    task = Task("train/1", "look", "train")
    trajectories = [
        Trajectory(task, 0, 1, [turn(0.0)], aborted=True, reason="engine: " + NASTY),
        Trajectory(task, 0, 0, [turn(0.0), turn(10.0)], won=True, score=1.0),
    ]
    steps = finished_steps(trajectories)
    assert [(s.trajectory, s.step, s.group, s.turn.reward) for s in steps] == [(1, 0, 0, 0.0), (1, 1, 0, 10.0)]
    write_trajectories(path, trajectories, steps, np.array([0.5, -1.25], np.float32))
    content = path.read_bytes()
    assert content.isascii()
    assert content.count(b"\n") == 2
    assert b"\x1b" not in content
    second, first = (json.loads(line) for line in content.splitlines())
    assert [entry["advantage"] for entry in first["turns"]] == [0.5, -1.25]
    assert first["turns"][1]["response"] == "response " + NASTY
    assert (first["task"], first["group"], first["member"], first["won"], first["score"]) == (
        "train/1",
        0,
        0,
        True,
        1.0,
    )
    high, low = anchor_hash("anchor")
    assert int(first["turns"][0]["anchor"], 16) == high << 32 | low
    assert (second["aborted"], second["reason"]) == (True, "engine: " + NASTY)
    assert "advantage" not in second["turns"][0]
    assert trajectories[1].total_reward == 10


def test_a_file_appears_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "iteration_000000.jsonl"
    good = Trajectory(Task("a", "", ""), 0, 0, [turn(0.0)])
    write_trajectories(path, [good])
    before = path.read_bytes()
    with pytest.raises(ValueError):  # two advantages for one step
        write_trajectories(path, [good], finished_steps([good]), [1.0, 2.0])
    with pytest.raises(ValueError):  # after the first line was written
        write_trajectories(path, [good, Trajectory(Task("b", "", ""), 0, 1, score="much")])  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
