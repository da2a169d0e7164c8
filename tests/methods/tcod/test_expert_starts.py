"""Episodes that begin in states of an expert's episode, ever earlier."""

import asyncio
from dataclasses import replace

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.methods.tcod.expert_starts import EXPERT, ExpertStarts
from gigpo_jax.rollout.early_ends import EarlyEnd
from gigpo_jax.rollout.group_ends import spare_groups
from gigpo_jax.rollout.part_table import find_parts, part_metrics
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.trajectory import BEGINNING, Past, finished_steps
from tests.rollout.stand_in import EXAMPLE, SETTINGS, begin_with, play


def make_config(**values: object) -> ConfigDict:
    config = default_config().unlock()
    config.env.name, config.train.expert_starts, config.seed = "example", 5, 3
    config.update_from_flattened_dict(values)
    return config


STARTS = ExpertStarts(make_config(), ())


def test_the_number_of_actions_is_that_of_tcod() -> None:
    counts = [STARTS.replayed_actions(4, iteration) for iteration in range(26)]
    assert counts == [max(0, 4 - 1 - iteration // 5) for iteration in range(26)]
    assert counts[:6] == [3] * 5 + [2]
    assert counts[-1] == 0


def find_starts(pool: EnvPool, iteration: int, starts: ExpertStarts = STARTS) -> list[Past]:
    tasks = pool.tasks("train")[:6]

    async def find() -> list[Past]:
        finders = [
            starts.begin_group(task, group, iteration, pool) for group, task in enumerate(tasks)
        ]
        return await asyncio.gather(*finders)

    return asyncio.run(find())


def test_all_episodes_of_a_task_begin_in_one_state_of_the_expert() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        tasks = pool.tasks("train")
        job = RolloutJob(tasks, group_size=2, iteration=0)
        assert STARTS.choose(job, None) == replace(job, starts=STARTS)
        pasts = find_starts(pool, 0)
        settings = replace(SETTINGS, parts=find_parts(make_config(), is_training=True))
        episodes = play(pool, groups=6, size=2, starts=STARTS, iteration=0, settings=settings)
        # Iterations have experts of their own; far behind the longest episode none is replayed.
        late = find_starts(pool, 5 * 40)
        # An expert without the steps to win shows no way.
        short = find_starts(pool, 0, ExpertStarts(make_config(**{"env.max_steps": 1}), ()))
    assert {past.actions for past in late} == {()}
    assert short == [BEGINNING] * 6
    for past in pasts:
        assert past.source == EXPERT
        assert past.reward == 0.0  # the reward is for the last action, which is left
        # One action before the end: the treasure is in the open drawer.
        assert past.actions[-1].startswith("open drawer")
        assert "In it, you see a " in past.state[0]
        assert "nothing" not in past.state[0]
    for number, episode in enumerate(episodes):
        past = pasts[number // 2]
        assert episode.past == past
        first = episode.turns[0]
        assert (first.observation, first.anchor) == past.state
        # They are the task's episodes, and no forks.
        assert not episode.is_forked
    steps = finished_steps(episodes)
    columns = step_columns(steps, needs=("forked",))
    assert not columns.forked.any()
    metrics = rollout_metrics(episodes, (), part_metrics(make_config()))
    assert metrics["episode/success_rate"] == sum(e.won for e in episodes) / 12 > 0
    replayed = sum(2 * len(past.actions) for past in pasts)
    assert metrics["rollout/expert_actions"] == pytest.approx(replayed / 12)
    assert metrics["rollout/forks"] == 0


def test_a_state_that_the_replay_does_not_reach_ends_the_run() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        past = Past(("open drawer 1",), ("another", "state"), source=EXPERT)
        with pytest.raises(InputError, match=r"train\.expert_starts: .* differently; use 0"):
            play(pool, groups=1, size=1, starts=begin_with(past))


def test_a_task_in_place_of_another_one_begins_there_too() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        spares = spare_groups(pool.tasks("train"), 0, 6, 2, seed=3)
        episodes = play(pool, size=2, starts=STARTS, iteration=0, ends=EarlyEnd(spares=spares))
    late = [episode for episode in episodes if episode.group >= 6]
    assert late
    assert all(episode.past.source == EXPERT for episode in late)


def test_what_cannot_begin_there_is_refused_in_one_line() -> None:
    resolve(make_config(**{"train.refill_groups": 1}))
    for key, value, reason in (
        ("env.prompt", "chat", r"train\.expert_starts=5: a conversation has no responses"),
        ("train.forks", 2, r"train\.forks=2: a task has one start"),
        (
            "env.name",
            "tests.env_bridge.failing:FAILING_WITHOUT_EXPERT",
            r"WITHOUT_EXPERT has no expert; use 0",
        ),
    ):
        with pytest.raises(InputError, match=reason):
            resolve(make_config(**{key: value}))
    slow = {"env.first_max_steps": 1, "env.max_steps_iterations": 3}
    with pytest.raises(InputError, match=r"env\.first_max_steps=1: starts that move"):
        resolve(make_config(**slow))
