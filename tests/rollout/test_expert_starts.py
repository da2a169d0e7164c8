"""Episodes that begin in states of an expert's episode, ever earlier."""

import asyncio

import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.rollout.expert_starts import ExpertStarts
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.trajectory import BEGINNING, EXPERT, Past, finished_steps
from tests.rollout.stand_in import EXAMPLE, play

STARTS = ExpertStarts("example", 5, 30, {}, seed=3)


def test_the_number_of_actions_is_that_of_tcod() -> None:
    counts = [STARTS.replayed_actions(4, iteration) for iteration in range(26)]
    assert counts == [max(0, 4 - 1 - iteration // 5) for iteration in range(26)]
    assert counts[:6] == [3] * 5 + [2]
    assert counts[-1] == 0


def find_starts(pool: EnvPool, iteration: int, starts: ExpertStarts = STARTS) -> list[Past]:
    tasks = pool.tasks("train")[:6]

    async def find() -> list[Past]:
        finders = [
            starts.find_start(pool, task, iteration, group) for group, task in enumerate(tasks)
        ]
        return await asyncio.gather(*finders)

    return asyncio.run(find())


def test_all_episodes_of_a_task_begin_in_one_state_of_the_expert() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        pasts = find_starts(pool, 0)
        assert find_starts(pool, 0) == pasts
        episodes = play(pool, groups=6, size=2, pasts=pasts)
        # Iterations have experts of their own; far behind the longest episode none is replayed.
        late = find_starts(pool, 5 * 40)
        # An expert without the steps to win shows no way.
        short = find_starts(pool, 0, ExpertStarts("example", 5, 1, {}, seed=3))
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
        assert episode.past is past
        first = episode.turns[0]
        assert (first.observation, first.anchor) == past.state
        # They are the task's episodes, and no forks.
        assert not episode.is_forked
    steps = finished_steps(episodes)
    columns = step_columns(steps, needs=("forked",))
    assert not columns.forked.any()
    metrics = rollout_metrics(episodes, steps, ())
    assert metrics["episode/success_rate"] == sum(e.won for e in episodes) / 12 > 0
    replayed = sum(2 * len(past.actions) for past in pasts)
    assert metrics["rollout/expert_actions"] == pytest.approx(replayed / 12)
    assert metrics["rollout/forks"] == 0


def test_a_state_that_the_replay_does_not_reach_ends_the_run() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        past = Past(("open drawer 1",), ("another", "state"), source=EXPERT)
        with pytest.raises(InputError, match=r"train\.expert_starts: .* differently; use 0"):
            play(pool, groups=1, size=1, pasts=[past])


def test_what_cannot_begin_there_is_refused_in_one_line() -> None:
    config = default_config().unlock()
    config.env.name, config.train.expert_starts = "example", 5
    resolve(config)
    for key, value, reason in (
        ("env.prompt", "chat", r"train\.expert_starts=5: .* no responses of a conversation"),
        ("train.forks", 2, r"train\.forks=2: a task has one start"),
        ("train.refill_groups", 1, r"train\.refill_groups=1: a task that takes the place"),
        (
            "env.name",
            "tests.env_bridge.failing:FAILING_WITHOUT_EXPERT",
            r"WITHOUT_EXPERT has no expert; use 0",
        ),
    ):
        other = default_config().unlock()
        other.env.name, other.train.expert_starts = "example", 5
        other.update_from_flattened_dict({key: value})
        with pytest.raises(InputError, match=reason):
            resolve(other)
    config.env.first_max_steps, config.env.max_steps_iterations = 1, 3
    with pytest.raises(InputError, match=r"env\.first_max_steps=1: starts that move"):
        resolve(config)
