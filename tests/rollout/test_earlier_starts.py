"""Groups that begin in states of earlier iterations' episodes."""

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.host_records import all_records
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.modes import sft, train
from gigpo_jax.rollout import earlier_starts
from gigpo_jax.rollout.earlier_starts import EarlierStarts
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.recorded_starts import RecordedStarts
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.trajectory import (
    BEGINNING,
    EARLIER,
    Past,
    Trajectory,
    finished_steps,
    has_contrast,
)
from tests.configs.example import get_config
from tests.metrics import records
from tests.rollout.stand_in import EXAMPLE, begin_with, play, same
from tests.turns import make_turn

TASKS = [
    Task(f"{label}{number}", "", "train", environment=label)
    for label in "ab"
    for number in range(4)
]


def make_starts(
    groups: int, tasks: Sequence[Task] = TASKS, capacity: int = earlier_starts.CAPACITY
) -> EarlierStarts:
    config = default_config()
    config.train.groups = 10
    config.train.earlier_starts = groups / 10
    starts = EarlierStarts(config, tasks)
    starts.capacity = capacity
    return starts


def make_episode(
    task: Task, group: int, rewards: list[float], past: Past = BEGINNING
) -> Trajectory:
    turns = [
        make_turn(
            action=f"{group}.{step}",
            observation=f"seen\n{step}",
            anchor=f"é{step}",
            reward=reward,
            response_tokens=np.zeros(2, np.int32),
        )
        for step, reward in enumerate(rewards)
    ]
    return Trajectory(task, group, 0, turns, past=past)


def choose(
    starts: EarlierStarts, tasks: Sequence[Task], iteration: int
) -> tuple[Sequence[Task], RecordedStarts]:
    job = starts.choose(RolloutJob(tasks, group_size=4, iteration=iteration), None)
    return job.tasks, job.starts


def test_groups_with_a_signal_give_one_state_each_and_the_oldest_go() -> None:
    starts = make_starts(2, capacity=3)
    equal = [make_episode(TASKS[0], 0, [0.0, 1.0])] * 2
    first_steps = [make_episode(TASKS[1], 1, [reward]) for reward in (0.0, 1.0)]
    aborted = make_episode(TASKS[2], 2, [5.0, 5.0])
    aborted.abort("broken", policy_dependent=False)
    starts.add([*equal, *first_steps, aborted, make_episode(TASKS[2], 2, [0.0, 0.0])], 0)
    assert starts.states == []
    different = [make_episode(TASKS[3], 3, rewards) for rewards in ([0.5, 0.0, 2.0], [0.5, 0.0])]
    long = make_episode(TASKS[3], 3, [7.0] * 99)
    long.abort("broken", policy_dependent=False)
    starts.add([*different, long], 0)
    (entry,) = starts.states
    assert entry["task"] == "a3"
    place = len(entry["actions"])
    assert entry["actions"] == ["3.0", "3.1"][:place] != []
    assert (entry["text"], entry["anchor"]) == (f"seen\n{place}", f"é{place}")
    for iteration, task in enumerate(TASKS[4:], 1):
        starts.add([make_episode(task, 0, [0.0, reward]) for reward in (0.0, 1.0)], iteration)
    assert [entry["task"] for entry in starts.states] == ["b1", "b2", "b3"]
    # A resumed run reads them from JSON.
    assert json.loads(json.dumps(starts.states)) == starts.states


def test_all_later_steps_of_finished_episodes_are_drawn() -> None:
    starts = make_starts(1)
    for iteration in range(2):
        episodes = [
            make_episode(TASKS[0], group, rewards)
            for group in range(20)
            for rewards in ([0.0] * 3, [0.0] * 5, [1.0] * 9)
        ]
        for aborted in episodes[2::3]:
            aborted.abort("broken", policy_dependent=False)
        for won in episodes[1::3]:
            won.score = 1.0
        starts.add(episodes, iteration)
    places = [len(entry["actions"]) for entry in starts.states]
    assert {*places[:20]} == {1, 2, 3, 4}
    assert places[:20] != places[20:]


def test_a_state_of_an_episode_with_a_past_lies_behind_it() -> None:
    starts = make_starts(1)
    past = Past(("x", "y"), source=EARLIER)
    starts.add([make_episode(TASKS[0], 0, [0.5, reward], past) for reward in (0.0, 1.0)], 3)
    (entry,) = starts.states
    assert entry["actions"] == ["x", "y", "0.0"]


def test_some_tasks_are_replaced_by_states_of_their_environment() -> None:
    starts = make_starts(3)
    drawn = [TASKS[number] for number in (0, 4, 1, 5, 2, 6)]
    tasks, states = choose(starts, drawn, 1)
    assert (tasks, states.pasts) == (drawn, {})
    starts.add([make_episode(TASKS[3], 0, [0.0, reward]) for reward in (0.0, 1.0)], 0)
    counts = set()
    for iteration in range(8):
        tasks, states = choose(starts, drawn, iteration)
        changed = states.pasts
        tasks_again, states_again = choose(starts, drawn, iteration)
        assert (tasks_again, states_again.pasts) == (tasks, changed)
        # The places of environment b have no state.
        assert {drawn[place].environment for place in changed} <= {"a"}
        for place, task in enumerate(tasks):
            assert task is (TASKS[3] if place in changed else drawn[place])
        for past in changed.values():
            assert past.actions == ("0.0",)
            assert past.source == EARLIER
        counts.add(len(changed))
    # As from a checkpoint.
    resumed = make_starts(3)
    resumed.restore(json.loads(json.dumps(starts.record())))
    tasks_again, states_again = choose(resumed, drawn, 7)
    assert (tasks_again, states_again.pasts) == (tasks, changed)
    assert len(counts) > 1
    assert max(counts) <= 3


def test_hosts_have_the_states_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [make_episode(TASKS[0], 0, [0.0, reward]) for reward in (0.0, 1.0)]
    there = [make_episode(TASKS[4], 1, [0.0, reward]) for reward in (0.0, 1.0)]
    sent: list[np.ndarray] = []

    def take(rows: np.ndarray) -> np.ndarray:
        sent.append(rows)
        return np.concatenate(sent)

    monkeypatch.setattr(earlier_starts, "all_records", partial(all_records, join=take))
    make_starts(1).add(here, 0)
    starts = make_starts(1)
    starts.add(there, 0)
    assert [entry["task"] for entry in starts.states] == ["a0", "b0"]
    assert starts.states[0]["anchor"] == "é1"


def test_episodes_begin_there_and_are_counted_apart() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        first = play(pool)
        all_tasks = pool.tasks("train")
        starts = make_starts(3, all_tasks)
        starts.add(first, 0)
        assert len(starts.states) == sum(
            has_contrast(first[start : start + 4]) for start in range(0, 24, 4)
        )
        tasks, states = choose(starts, all_tasks[:6], 1)
        episodes = play(pool, starts=states, tasks=tasks, iteration=6)
        # A host plays its share of the groups from the same states.
        share = play(pool, starts=states, tasks=tasks[3:], iteration=6, first_group=3)
    assert same(share, episodes[12:])
    early = [episode for episode in episodes if episode.past.source == EARLIER]
    assert {episode.group for episode in early} == {*states.pasts}
    assert len(early) == 12
    for episode in early:
        first_turn = episode.turns[0]
        assert (first_turn.observation, first_turn.anchor) == episode.past.state
        assert len(episode.past.actions) + len(episode.turns) <= 8
    steps = finished_steps(episodes)
    assert not any(step.episode.is_forked for step in steps)
    metrics = rollout_metrics(episodes, ())
    whole = [episode for episode in episodes if episode.past is BEGINNING]
    assert metrics["episode/success_rate"] == pytest.approx(np.mean([e.won for e in whole]))
    assert metrics["rollout/earlier_starts"] == 12
    assert metrics["rollout/earlier_success_rate"] == pytest.approx(np.mean([e.won for e in early]))
    assert metrics["rollout/earlier_depth"] == pytest.approx(
        np.mean([len(e.past.actions) for e in early])
    )
    assert metrics["rollout/forks"] == 0


def test_a_state_that_the_replay_does_not_reach_ends_the_run() -> None:
    past = Past(("open drawer 1",), ("another", "state"), source=EARLIER)
    with (
        EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool,
        pytest.raises(InputError, match=r"train\.earlier_starts: .* differently; use 0"),
    ):
        play(pool, groups=1, size=1, starts=begin_with(past))


def test_what_cannot_begin_there_is_refused_in_one_line() -> None:
    def change(**values: object) -> ConfigDict:
        config = default_config().unlock()
        config.env.name, config.train.earlier_starts = "example", 0.25
        config.update_from_flattened_dict(values)
        return config

    config = resolve(change(**{"train.earlier_starts": 0.3}))
    starts = EarlierStarts(config, TASKS)
    assert starts._groups == 4  # of 16, rounded down
    for key, value, reason in (
        ("train.earlier_starts", 0.05, r"=0\.05: rounded down, no group .*; use at least 0\.0625"),
        ("train.earlier_starts", 1.0, r"earlier_starts=1\.0: must be at least 0 and below 1"),
        ("env.prompt", "chat", r"earlier_starts=0\.25: a conversation has no responses"),
        ("env.plan", "subgoal", r"earlier_starts=0\.25: episodes would begin without the plan"),
        ("env.name", "examples.harness.agent:PLAYER", r"=0\.25: .* cannot replay actions; use 0"),
        ("train.forks", 2, r"train\.forks=2: a task has one start"),
        (
            "train.expert_starts",
            2,
            r"earlier_starts=0\.25: a task has one start .*; use 0, or train\.expert_starts=0",
        ),
        ("train.max_staleness", 1, r"train\.max_staleness=1: rollouts that run ahead"),
    ):
        with pytest.raises(InputError, match=reason):
            resolve(change(**{key: value}))


@pytest.mark.slow
def test_a_resumed_run_begins_in_the_same_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_starts, "CAPACITY", 3)
    config = get_config().unlock()
    # Long enough that some episodes are won.
    config.sft.epochs = 40
    config.optim.lr = 1e-2
    assert sft.run(resolve(config), tmp_path / "sft", "") == 0

    config = get_config().unlock()
    config.model.path = str(tmp_path / "sft" / "model")
    config.train.earlier_starts = 0.5
    config.train.iterations = 2
    config.train.save_rollouts = 1
    config.checkpoint.every = 1
    config = resolve(config)
    whole = tmp_path / "whole"
    assert train.run(config, whole, "") == 0
    # As a run that was stopped behind the checkpoint before.
    resumed = tmp_path / "resumed"
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints" / "2")
    file = sorted((resumed / "rollouts").iterdir())[-1]
    file.unlink()
    assert train.run(config, resumed, "") == 0

    metrics = records(whole)[1:]
    assert records(whole) == records(resumed)
    assert metrics[0]["rollout/earlier_starts"] == 0
    assert metrics[-1]["rollout/earlier_starts"] == 8  # two of four groups of four
    assert 0 < metrics[-1]["rollout/earlier_states"] <= 3
    episodes = read_rollouts(whole / "rollouts" / file.name).episodes
    assert episodes == read_rollouts(file).episodes
    assert sum(bool(episode.past) for episode in episodes) == 8
