"""Plans in episodes: the next prompt shows what the last response stated."""

import asyncio
import dataclasses
import functools
import random

import numpy as np

from gigpo_jax.config import default_config
from gigpo_jax.engines.base import Completion
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.envs import registry
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.methods.hiper.subgoals import read_subgoal, subgoal_parser
from gigpo_jax.methods.strata.episode_part import STRATEGY_NUMBER, StrategyPart
from gigpo_jax.methods.strata.strategies import Strategies
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.prompt_encoding import prompt_encoder
from gigpo_jax.rollout.record import collect_rollouts
from gigpo_jax.rollout.rollout import RolloutJob, rollout
from gigpo_jax.rollout.shown_episode import episode_markdown
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.tools.credit.replay import replay_episodes
from gigpo_jax.tools.credit.states import state_at
from gigpo_jax.trajectory import Past, StepCredit, finished_steps
from tests.rollout.stand_in import EXAMPLE, SETTINGS, StandIn, begin_with

TAGS = "<switch></switch><subgoal></subgoal>"
TOKENIZER = word_tokenizer(["plan keep switch find the coin pearl ring open drawer did now", TAGS])
SUBGOALS = dataclasses.replace(
    SETTINGS, plan="subgoal", parse=subgoal_parser(EXAMPLE.parse), prompt_tokens=96
)


class Planner(StandIn):
    """States a subgoal in two responses of three."""

    async def generate(self, tokens, params):
        del tokens
        draw = random.Random(repr(params.key))
        number = draw.randint(1, 4)
        response = f"<action>open drawer {number}</action>"
        if draw.random() < 0.67:
            decision = draw.choice(["keep", "switch"])
            subgoal = draw.choice(["find the ring", "find the coin", "open drawer"])
            response = f"<switch>{decision}</switch><subgoal>{subgoal}</subgoal>{response}"
        ids = np.asarray(TOKENIZER.encode(response), np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), "stop", 0)


def strategies(episodes: int = 1) -> EpisodeSettings:
    """Settings with a strategy for each `episodes` of a group."""
    config = default_config()
    config.train.strategy_episodes = episodes
    config.sampling.max_summary_tokens = 5
    return dataclasses.replace(
        SETTINGS,
        plan="strategy",
        prompt_tokens=96,
        parts=[functools.partial(StrategyPart, config)],
    )


class Strategist(Planner):
    """Writes two words where it is asked for a strategy."""

    async def generate(self, tokens, params):
        self.requests.append((tuple(tokens), params))
        if not TOKENIZER.decode(list(tokens)).endswith(" plan"):
            return await super().generate(tokens, params)
        await asyncio.sleep(0.01)
        words = random.Random(repr(params.key)).choices(["open", "find", "ring", "pearl"], k=2)
        ids = np.asarray(TOKENIZER.encode(" ".join(words)), np.int32)
        return Completion(ids, np.full(len(ids), -1.5, np.float32), "stop", 0)


def play_strategies(episodes: int = 1, **settings):
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        engine = Strategist()
        runner = EpisodeRunner(engine, TOKENIZER, strategies(episodes))
        tasks = pool.tasks("train")[:2]
        play = rollout(
            RolloutJob(tasks, group_size=6, iteration=0, shares_texts=True, **settings),
            {"": (runner, pool)},
        )
        return asyncio.run(play), engine


def numbers(trajectory) -> set[int]:
    return {turn.extra[STRATEGY_NUMBER] for turn in trajectory.turns}


def test_episodes_of_a_strategy_share_one_turn() -> None:
    trajectories, engine = play_strategies(3)
    first_turns = [trajectory.turns[0] for trajectory in trajectories]
    assert [numbers(trajectory) for trajectory in trajectories] == [{0}] * 3 + [{1}] * 3 + [
        {0}
    ] * 3 + [{1}] * 3
    for first in range(0, 12, 3):
        assert all(turn is first_turns[first] for turn in first_turns[first : first + 3])
        assert first_turns[first].is_text
        assert first_turns[first].reward == first_turns[first].penalty == 0.0
    assert len({turn.action for turn in first_turns}) > 2
    requests = [params for _, params in engine.requests if params.max_tokens == 5]
    assert len({params.key for params in requests}) == len(requests) == 4
    assert all(params.stop_strings == () for params in requests)
    for trajectory in trajectories:
        strategy = trajectory.turns[0].action
        assert all(f"plan {strategy} now" in turn.prompt for turn in trajectory.turns[1:])
        assert trajectory.turns[0].prompt.endswith(" plan")
        assert trajectory.length == len(trajectory.turns) - 1
        # The state after the strategy is another one than before.
        states = [state_at(trajectory, place) for place in (0, 1)]
        assert [state.plan for state in states] == [None, strategy]

    steps = finished_steps(trajectories)
    rows = [step for step in steps if step.turn.is_text]
    assert [
        (row.episode.group, row.turn.extra[STRATEGY_NUMBER], row.trajectory) for row in rows
    ] == [
        (0, 0, 0),
        (0, 1, 3),
        (1, 0, 6),
        (1, 1, 9),
    ]
    for step in steps:
        assert trajectories[step.trajectory].turns[step.turn_index] is step.turn
    metrics = rollout_metrics(trajectories, ())
    assert metrics["rollout/summaries"] == 4
    tokens = sum(len(step.turn.response_tokens) for step in steps)
    assert metrics["rollout/generated_tokens"] == tokens
    computed = Strategies().compute_columns(ScoredSteps(steps, (None, None), None))
    assert computed["strategy"].tolist() == [step.turn.extra[STRATEGY_NUMBER] for step in steps]


def test_a_continuation_keeps_its_strategy_and_strategies_repeat() -> None:
    trajectories, _ = play_strategies(3)
    again, _ = play_strategies(3)
    assert [t.turns[0].action for t in again] == [t.turns[0].action for t in trajectories]
    alone, _ = play_strategies()
    assert len({id(trajectory.turns[0]) for trajectory in alone}) == 12
    turn = trajectories[0].turns[2]
    past = Past((trajectories[0].turns[1].action,), plan=turn.plan)
    continued, _ = play_strategies(starts=begin_with(past, past))
    assert not any(turn.is_text for trajectory in continued for turn in trajectory.turns)
    assert continued[0].turns[0].prompt == turn.prompt
    zeros = np.zeros(len(finished_steps(trajectories)), np.float32)
    credit = StepCredit(zeros, zeros, zeros, zeros.astype(np.int32))
    saved = collect_rollouts(
        trajectories, credit, None, gamma=1.0, iteration=0, temperature=1.0, decode=TOKENIZER.decode
    )
    encode = prompt_encoder(TOKENIZER, None)
    env = registry.make("example")
    repeated = replay_episodes(
        env,
        saved.episodes,
        strategies(3),
        prompt=lambda observation, history: (
            strategies(3).prompt(observation, history, encode),
            None,
        ),
    )
    assert [[turn.plan for turn in t.turns] for t in repeated] == [
        [turn.plan for turn in t.turns] for t in trajectories
    ]
    assert [*map(numbers, repeated)] == [*map(numbers, trajectories)]
    # Shared turns are one row of the learner again.
    assert len(finished_steps(repeated)) == len(finished_steps(trajectories))


def test_saved_episodes_of_a_strategy_show_the_credit_of_its_row() -> None:
    trajectories, _ = play_strategies(3)
    trajectories[1].won = True  # not the episode whose row the strategy is
    trajectories[2].abort("the environment failed", policy_dependent=False)
    numbers = np.arange(len(finished_steps(trajectories)), dtype=np.float32)
    credit = StepCredit(numbers, numbers, numbers, numbers.astype(np.int32))
    saved = collect_rollouts(
        trajectories, credit, None, gamma=1.0, iteration=0, temperature=1.0, decode=TOKENIZER.decode
    )
    first, second, aborted = saved.episodes[:3]
    assert second.steps[0].advantage == first.steps[0].advantage == 0.0
    assert second.steps[1].advantage == len(first.steps)
    assert [step.advantage for step in aborted.steps] == [None] * len(aborted.steps)
    assert "**won**" in episode_markdown(saved)
    strategies = {step.advantage for e in saved.episodes if not e.aborted for step in e.steps[:1]}
    assert len(strategies) == 4


def test_the_next_prompt_shows_the_last_subgoal() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        runner = EpisodeRunner(Planner(), TOKENIZER, SUBGOALS)
        play = rollout(
            RolloutJob(pool.tasks("train")[:2], group_size=3, iteration=0), {"": (runner, pool)}
        )
        trajectories = asyncio.run(play)
    changes = 0
    for trajectory in trajectories:
        plan = ""
        for turn in trajectory.turns:
            assert (f"plan {plan} now" in turn.prompt) if plan else "plan" not in turn.prompt
            subgoal = read_subgoal(turn.response).subgoal
            assert turn.valid == bool(subgoal)
            changes += plan not in ("", subgoal) and bool(subgoal)
            plan = subgoal or plan
    assert changes > 5
