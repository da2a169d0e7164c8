"""Episodes of a group that begin in states of its first ones."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import request_key
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.prompts import History, Prompt
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.envs import registry
from gigpo_jax.rollout.early_ends import EarlyEnd
from gigpo_jax.rollout.fork_starts import Forks
from gigpo_jax.rollout.group_ends import spare_groups
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import collect_rollouts, write_rollouts
from gigpo_jax.rollout.recorded_starts import past_before
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.tools.credit.replay import replay_episodes
from gigpo_jax.tools.credit.states import state_at
from gigpo_jax.trajectory import (
    BEGINNING,
    Past,
    StepCredit,
    Trajectory,
    finished_steps,
    has_contrast,
)
from tests.rollout.stand_in import EXAMPLE, SETTINGS, TOKENIZER, StandIn, play, same
from tests.turns import make_turn


def make_forks(number: int, choice: str) -> Forks:
    config = default_config()
    config.seed, config.rl.gamma = 3, 0.9
    config.train.forks, config.train.fork_choice = number, choice
    return Forks(config, ())


FORKS = make_forks(3, "uniform")


@pytest.mark.parametrize("choice", ["uniform", "uncertainty", "entropy"])
def test_forks_begin_in_states_of_the_first_episodes(choice: str) -> None:
    forks = make_forks(3, choice)
    engine = StandIn()
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        whole = play(pool, size=2)
        forked = play(pool, engine, size=5, starts=forks)
        with EnvPool(EXAMPLE.build, workers=2, envs_per_worker=3) as other_pool:
            assert same(play(other_pool, size=5, starts=forks), forked)
    assert [t.member for t in forked] == list(range(5)) * 6
    assert same([t for t in forked if t.member < 2], whole)
    keys = {params.key for _, params in engine.requests}
    for fork in (t for t in forked if t.member >= 2):
        depth = len(fork.past.actions)
        parents = [
            t
            for t in whole
            if t.group == fork.group
            and tuple(turn.action for turn in t.turns[:depth]) == fork.past.actions
        ]
        # One of the parents is the one whose state was chosen.
        assert any(
            depth < len(t.turns)
            and fork.turns[0].prompt == t.turns[depth].prompt
            and fork.turns[0].anchor == t.turns[depth].anchor
            for t in parents
        )
        spent = {sum(len(turn.response_tokens) for turn in t.turns[:depth]) for t in parents}
        assert fork.past.tokens in spent
        # The limit of steps counts from the start of the task.
        assert depth + len(fork.turns) == 8 or fork.won
        for step in range(len(fork.turns)):
            assert request_key(3, 5, fork.group, fork.member, depth + step) in keys
    depths = {len(t.past.actions) for t in forked}
    assert len(depths) > 2


def test_a_worker_that_dies_in_a_replay_costs_nothing() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        expected = play(pool, groups=1, size=5, starts=FORKS)
        attempts: list[Trajectory] = []

        def kill_before_forks(trajectory: Trajectory) -> None:
            attempts.append(trajectory)
            if len(attempts) == 2:
                os.kill(pool.pids[0], signal.SIGKILL)

        hit = play(pool, groups=1, size=5, starts=FORKS, on_attempt=kill_before_forks)
        aborted = [t for t in attempts if t.aborted]
        assert any(t.is_forked and not t.turns for t in aborted)
        assert same([replace(t, replayed=False) for t in hit], expected)


def test_environments_that_do_not_replay_are_refused() -> None:
    message = r"config\.train\.forks: task .* differently; use 0"
    with (
        EnvPool("tests.env_bridge.failing:DriftingEnv", workers=1, envs_per_worker=8) as pool,
        pytest.raises(InputError, match=message),
    ):
        play(pool, size=5, starts=FORKS)


def test_saved_forks_are_replayed_and_measured_from_their_states(tmp_path: Path) -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        episodes = play(pool, groups=2, size=5, starts=FORKS)
    rows = len(finished_steps(episodes))
    zeros = np.zeros(rows, np.float32)
    credit = StepCredit(zeros, zeros, zeros, np.zeros(rows, np.int64))
    rollouts = collect_rollouts(
        episodes,
        credit,
        None,
        gamma=1.0,
        iteration=0,
        temperature=1.0,
        decode=TOKENIZER.decode,
    )
    path = tmp_path / "rollouts.jsonl.gz"
    write_rollouts(path, rollouts)

    def prompt(observation: Observation, history: History) -> tuple[Prompt, None]:
        return SETTINGS.prompt(observation, history, TOKENIZER.encode_chat), None

    repeated = replay_episodes(
        registry.make("example"),
        read_rollouts(path).episodes,
        SETTINGS,
        prompt=prompt,
    )
    for episode, other in zip(episodes, repeated, strict=True):
        assert [turn.anchor for turn in other.turns] == [turn.anchor for turn in episode.turns]
        assert other.past.actions == episode.past.actions
        actions = tuple(turn.action for turn in other.turns[:1])
        state = state_at(other, 1)
        if state is not None:
            assert state.past == episode.past.actions + actions
    assert any(episode.is_forked for episode in repeated)


def test_groups_with_forks_are_replaced_whole() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        spares = spare_groups(pool.tasks("train"), 5, 6, 2, seed=3)
        forks = make_forks(1, "uniform")
        played = play(pool, size=3, starts=forks, ends=EarlyEnd(spares=spares))
    groups = {t.group for t in played}
    assert max(groups) > 6
    for group in groups:
        members = [t for t in played if t.group == group]
        assert [t.member for t in members] == [0, 1, 2]
        assert not members[0].is_forked
        if members[0].replaced:
            assert not has_contrast(members)


def test_without_a_finished_episode_all_begin_at_the_start() -> None:
    failed = Trajectory(Task("t", "", "train"), 0, 0, [make_turn()])
    failed.abort("broken", policy_dependent=False)
    assert FORKS.begin_forks([failed], 0) == [BEGINNING] * 3


def test_the_past_of_a_state_has_what_was_earned_and_spent_before_it() -> None:
    turns = [
        make_turn(
            action=f"act {number}",
            observation=f"seen {number}",
            anchor=f"state {number}",
            reward=reward,
            response_tokens=np.zeros(2**number, np.int32),
        )
        for number, reward in enumerate((0.5, -0.25, 4.0))
    ]
    earlier = Past(("first",), ("seen", "state"), 8.0, 16, source="earlier_starts")
    episode = Trajectory(Task("t", "", "train"), 0, 0, turns, past=earlier)
    expected = Past(("first", "act 0", "act 1"), ("seen 2", "state 2"), 8.25, 19, source="forks")
    assert past_before(episode, 2, "forks") == expected


def test_statistics_of_episodes_leave_forks_out() -> None:
    def episode(member: int, rewards: list[float], past: Past = BEGINNING) -> Trajectory:
        turns = [
            make_turn(reward=reward, response_tokens=np.zeros(3, np.int32)) for reward in rewards
        ]
        won = rewards[-1] > 0
        return Trajectory(Task("t", "heat", "train"), 0, member, turns, won, float(won), past=past)

    lost = episode(0, [-0.1, -0.1, -0.1])
    won = episode(1, [-0.1, 10.0])
    fork = episode(2, [-0.1, -0.1], Past(("look",), None, -0.1, 3, source="forks"))
    trajectories = [lost, won, fork, fork]
    steps = finished_steps(trajectories)
    metrics = rollout_metrics(trajectories, ["heat"])
    assert metrics["episode/success_rate"] == metrics["episode/success_rate/heat"] == 0.5
    assert metrics["episode/length"] == 2.5
    assert metrics["rollout/episodes"] == 4
    assert metrics["rollout/forks"] == 2
    assert metrics["rollout/fork_depth"] == 1
    assert metrics["rollout/fork_success_rate"] == 0
    assert metrics["rollout/saved_tokens"] == 6
    assert metrics["rollout/generated_tokens"] == 27
    assert [step.episode.is_forked for step in steps] == [False] * 5 + [True] * 4
    # The whole return of the fork is the lost episode's.
    assert not has_contrast([lost, fork])
    assert has_contrast([won, fork])
