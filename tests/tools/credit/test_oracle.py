"""Measured advantages against a grid world whose values are known; replays; stopping and
continuing.
"""

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.learner.signals.saved import gradable_columns
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.record import Rollouts, collect_rollouts
from gigpo_jax.rollout.rollout import RolloutJob, rollout
from gigpo_jax.tools.credit.continuations import continue_from, read_returns
from gigpo_jax.tools.credit.grades import Measured, grade, reliability
from gigpo_jax.tools.credit.replay import replay_episodes
from gigpo_jax.tools.credit.states import (
    State,
    choose_steps,
    first_episodes,
    measured_advantages,
    states_around,
)
from gigpo_jax.trajectory import Step, StepCredit, Trajectory, finished_steps
from tests.models.shapes import SMALL
from tests.tools.credit import grid

CONTINUATIONS = 24


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvPool]:
    with EnvPool("tests.tools.credit.grid:Grid", workers=1, envs_per_worker=64) as pool:
        yield pool


async def play(pool: EnvPool, job: RolloutJob) -> list[Trajectory]:
    runner = EpisodeRunner(grid.PolicyEngine(), grid.TOKENIZER, grid.SETTINGS)
    return await rollout(job, {"": (runner, pool)})


@pytest.fixture(scope="module")
def rollouts(pool: EnvPool) -> Rollouts:
    """4 episodes of each of 12 tasks."""
    played = asyncio.run(play(pool, RolloutJob(pool.tasks("train")[:12], 4, iteration=0)))
    n = len(finished_steps(played))
    nothing = StepCredit(*np.zeros((3, n), np.float32), np.zeros(n, np.int64))
    how = {"gamma": 1.0, "iteration": 0, "temperature": 1.0}
    return collect_rollouts(played, nothing, None, decode=grid.TOKENIZER.decode, **how)


def again(rollouts: Rollouts, env: grid.Grid) -> list[Trajectory]:
    build = partial(
        build_prompt,
        grid.SETTINGS.template,
        encode=grid.TOKENIZER.encode_chat,
        limit=64,
        show_admissible=False,
    )
    return replay_episodes(
        env, rollouts.episodes, grid.SETTINGS, prompt=lambda *seen: (build(*seen), None)
    )


@pytest.fixture(scope="module")
def found(pool: EnvPool, rollouts: Rollouts, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """Episodes, all their steps, the chosen ones, the states around these, and the returns from
    them.
    """
    episodes = again(rollouts, grid.Grid())
    steps = finished_steps(episodes)
    chosen = [steps[row] for row in choose_steps(steps, 60, 0)]
    states = states_around(episodes, chosen)
    path = tmp_path_factory.mktemp("credit") / "returns.jsonl"
    how: dict[str, Any] = {"number": CONTINUATIONS, "at_once": 16, "progress": lambda new: None}
    returns = asyncio.run(continue_from(states, path, partial(play, pool), **how))
    return episodes, steps, chosen, states, returns


def exact(steps: Sequence[Step], episodes: Sequence[Trajectory]) -> np.ndarray:
    goals = [int(episodes[step.trajectory].task.data) for step in steps]
    cells = [int(step.turn.observation.split()[1]) for step in steps]
    rows = zip(goals, cells, steps, strict=True)
    return np.array(
        [grid.advantage(goal, cell, s.turn.action, grid.STEPS - s.step) for goal, cell, s in rows]
    )


def test_measured_advantages_are_the_exact_ones_but_for_noise_of_the_stated_size(
    found: tuple,
) -> None:
    episodes, _, chosen, _, returns = found
    measured, error = measured_advantages(episodes, chosen, returns)
    truth = exact(chosen, episodes)
    clear = error > 0
    assert clear.sum() > 40
    assert np.mean(((measured - truth)[clear] / error[clear]) ** 2) == pytest.approx(1.0, abs=0.45)
    assert np.abs(np.mean(measured - truth)) < 0.3


def test_a_perfect_estimate_grades_one_and_noise_zero(found: tuple) -> None:
    episodes, _, chosen, _, returns = found
    measured = Measured(
        *measured_advantages(episodes, chosen, returns),
        np.array([step.episode.group for step in chosen]),
    )
    assert 0.5 < reliability(measured) < 0.97, "or the correction is not tested"
    truth = exact(chosen, episodes)
    perfect = grade(truth, measured, 0)
    assert perfect["corrected"][0] == pytest.approx(1.0, abs=0.08)
    assert perfect["corrected"][1] - 0.03 <= 1.0 <= perfect["corrected"][2] + 0.03
    assert perfect["pearson"][0] < perfect["corrected"][0] - 0.01
    assert perfect["sign"][0] > 0.9
    noise = [
        grade(np.random.default_rng(seed).normal(size=len(chosen)), measured, 0)["corrected"]
        for seed in range(8)
    ]
    assert sum(low <= 0 <= high for _, low, high in noise) >= 6


def test_the_exact_advantages_have_no_noise_and_others_that_which_was_added(found: tuple) -> None:
    episodes, _, chosen, _, returns = found
    measured = Measured(
        *measured_advantages(episodes, chosen, returns),
        np.array([step.episode.group for step in chosen]),
    )
    truth = exact(chosen, episodes)
    perfect = grade(truth, measured, 0)["noise"]
    assert perfect[0] == pytest.approx(0.0, abs=0.3)
    assert grade(7 * truth, measured, 0)["noise"] == pytest.approx(perfect)
    rng = np.random.default_rng(0)
    size = np.sqrt(np.mean(measured.error**2))
    added = [
        grade(truth + 2 * size * rng.normal(size=60), measured, 0)["noise"][0] for _ in range(40)
    ]
    assert np.median(added) == pytest.approx(4.0, abs=1.5)
    assert all(grade(rng.normal(size=60), measured, 0)["noise"][2] > 20.0 for _ in range(8))


@pytest.mark.slow
def test_steps_are_whole_episodes_of_every_group_and_more_steps_begin_with_fewer(
    found: tuple,
) -> None:
    _, steps, _, _, _ = found
    few = choose_steps(steps, 30, 0)
    many = choose_steps(steps, 90, 0)
    assert many[:30] == few
    assert len(set(many)) == 90
    assert {steps[row].episode.group for row in many} == set(range(12))
    assert choose_steps(steps, 30, 1) != few
    assert {*many} <= {*first_episodes(steps, 2, 0)}
    assert len({steps[row].trajectory for row in first_episodes(steps, 2, 0)}) == 24
    assert first_episodes(steps, 4, 0) == list(range(len(steps)))
    every = choose_steps(steps, 10**6, 0)
    assert sorted(every) == list(range(len(steps)))


@pytest.mark.slow
def test_a_stopped_measurement_goes_on_and_gives_the_same(
    pool: EnvPool, found: tuple, tmp_path: Path
) -> None:
    _, _, _, states, returns = found
    path = tmp_path / "returns.jsonl"
    calls = []
    how: dict[str, Any] = {"number": CONTINUATIONS, "at_once": 5, "progress": lambda new: None}

    async def stops(job: RolloutJob) -> list[Trajectory]:
        calls.append(job.first_group)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return await play(pool, job)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(continue_from(states[:20], path, stops, **how))
    path.write_bytes(path.read_bytes()[:-7])  # as a kill in the middle of a line
    (tmp_path / "link").hardlink_to(path)
    cut = path.read_bytes()
    rest = asyncio.run(continue_from(states[:20], path, partial(play, pool), **how))
    assert all(np.array_equal(rest[state], returns[state]) for state in states[:20])
    # The file was replaced, not written again: a full disk costs no returns.
    assert (tmp_path / "link").read_bytes() == cut
    assert len(read_returns(path, states)) == 20
    with pytest.raises(InputError, match="other states"):
        read_returns(path, [State(99, states[0].task, ()), *states])


def test_answers_are_scored_where_every_task_has_one(rollouts: Rollouts) -> None:
    config = resolve(default_config())
    episodes = again(rollouts, grid.Grid())
    policy = Policy(SMALL["mha_tied"], None, word_tokenizer(["look"]))
    columns = {"entropy", "logprob", "hindsight_logprob", "task_deviation", "executable"}
    steps = finished_steps(episodes)
    assert gradable_columns(config, policy, steps) == columns | {"answer_logprob"}
    episodes[0].task = dataclasses.replace(episodes[0].task, answer="")
    assert gradable_columns(config, policy, finished_steps(episodes)) == columns


@pytest.mark.slow
def test_replays_give_other_anchors_and_the_regret_of_every_action(rollouts: Rollouts) -> None:
    plain = again(rollouts, grid.Grid())
    blind = again(rollouts, grid.Grid(anchor="none"))
    one = finished_steps(plain)
    other = finished_steps(blind)
    assert {step.turn.anchor for step in other} == {""}
    assert [step.turn.anchor for step in one] == [step.turn.observation for step in one]
    assert [a.turn.prompt_tokens.tolist() for a in one] == [
        b.turn.prompt_tokens.tolist() for b in other
    ]
    assert {step.turn.regret for step in one} == {
        0.0,
        1.0,
        2.0,
    }  # towards the goal, against a wall, away from it
    for step in one:
        goal = int(plain[step.trajectory].task.data)
        assert step.episode.task.answer == f"cell {goal}"
        cell = int(step.turn.observation.split()[1])
        after = grid.distance(grid.move(cell, step.turn.action), goal)
        assert step.turn.regret == after - grid.distance(cell, goal) + 1


def test_an_environment_that_answers_otherwise_is_refused(rollouts: Rollouts) -> None:
    lost = dataclasses.replace(rollouts, episodes=tuple(e for e in rollouts.episodes if not e.won))
    with pytest.raises(InputError, match="replays exactly"):  # no reward differs, only what is seen
        again(lost, grid.Grid(slip=True))
    first = rollouts.episodes[0]
    cheat = dataclasses.replace(first.steps[0], reward=3.0)
    changed = dataclasses.replace(
        rollouts, episodes=(dataclasses.replace(first, steps=(cheat, *first.steps[1:])),)
    )
    with pytest.raises(InputError, match="replays exactly"):
        again(changed, grid.Grid())
