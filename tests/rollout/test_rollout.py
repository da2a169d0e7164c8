"""Rollouts: the same whatever runs where, and failures that cost their own episodes alone."""

import asyncio
import dataclasses
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs import registry
from gigpo_jax.envs.alfworld.data.one_split import generate_games
from gigpo_jax.models import decoder
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.rollout import RolloutJob, TooManyAborted, _check_aborted, rollout
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.trajectory import Past, Trajectory
from tests.rollout.stand_in import EXAMPLE, SETTINGS, TOKENIZER, StandIn, begin_with, play, same


def test_an_episode_continues_from_any_of_its_states_as_it_did() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        whole = play(pool, size=1)
        pasts = [[turn.action for turn in t.turns[: len(t.turns) // 2]] for t in whole]
        rest = play(pool, size=1, starts=begin_with(*(Past(tuple(past)) for past in pasts)))
    assert max(map(len, pasts)) > 2
    for trajectory, other_trajectory, past in zip(whole, rest, pasts, strict=True):
        assert same(trajectory.turns[len(past) :], other_trajectory.turns)
        assert (trajectory.won, trajectory.score) == (other_trajectory.won, other_trajectory.score)


def test_a_rollout_does_not_depend_on_workers_places_or_order() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=1) as pool:
        expected = play(pool)
    assert [(t.group, t.member) for t in expected] == [
        (group, member) for group in range(6) for member in range(4)
    ]
    lengths = {len(trajectory.turns) for trajectory in expected}
    assert len(lengths) > 2, "a test with equal episodes would show nothing"
    assert {trajectory.won for trajectory in expected} == {True, False}
    for workers, places in ((1, 16), (3, 8), (1, 5)):
        with EnvPool(EXAMPLE.build, workers=workers, envs_per_worker=places) as pool:
            assert same(play(pool), expected)
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        later = play(pool, groups=7)[4:28]  # the groups 1 to 6 again
        runner = EpisodeRunner(StandIn(), TOKENIZER, SETTINGS)
        tail = asyncio.run(
            rollout(
                RolloutJob(pool.tasks("train")[1:7], group_size=4, iteration=5, first_group=1),
                {"": (runner, pool)},
            )
        )
        assert same(tail, later), "hosts that number their groups apart draw what one host would"
        assert not same(play(pool, iteration=6), expected)


def test_the_end_of_the_length_limit_costs_reward() -> None:
    """DAPO (arXiv 2503.14476, eq. 13) with L_max 20, L_cache 5: 0 up to 15 tokens, then linear to 1
    at 20, times 2.
    """
    settings = dataclasses.replace(SETTINGS, overlong_buffer=5, overlong_penalty=2.0)
    lengths = (0, 15, 16, 18, 20)
    assert [settings.penalty(True, n) for n in lengths] == pytest.approx([0, 0, 0.4, 1.2, 2.0])
    assert [settings.penalty(False, n) for n in lengths] == pytest.approx(
        [0.25, 0.25, 0.65, 1.45, 2.25]
    )
    assert [SETTINGS.penalty(valid, 20) for valid in (True, False)] == [0.0, 0.25]
    short = dataclasses.replace(
        settings, sampling=dataclasses.replace(SETTINGS.sampling, max_tokens=10)
    )
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        turns = [turn for trajectory in play(pool, settings=short) for turn in trajectory.turns]
    # StandIn's responses have 6 or 7 tokens more or less; the last 5 of 10 cost 0.4 each.
    for turn in turns:
        excess = max(len(turn.response_tokens) - 5, 0)
        assert turn.penalty == pytest.approx(0.4 * excess + 0.25 * (not turn.valid))
    assert len({turn.penalty for turn in turns}) > 2


def test_a_turn_holds_what_was_shown_said_and_done(monkeypatch: pytest.MonkeyPatch) -> None:
    # As templates of thinking models begin every response.
    monkeypatch.setattr(TOKENIZER, "opened_text", "so ")
    engine = StandIn()
    ended = []

    def show_all(inputs: PromptInput) -> str:
        return SETTINGS.template(inputs) + "".join(
            " | " + event.observation for event in inputs.history
        )

    settings = dataclasses.replace(SETTINGS, template=show_all, prompt_tokens=120)
    with EnvPool(EXAMPLE.build, workers=2, envs_per_worker=4) as pool:
        trajectories = play(pool, engine, settings=settings, on_attempt=ended.append)
    assert sorted((t.group, t.member) for t in ended) == [(t.group, t.member) for t in trajectories]
    asked = {params.key: (tokens, params) for tokens, params in engine.requests}
    assert len(asked) == len(engine.requests) == sum(len(t.turns) for t in trajectories)
    environment = registry.make("example")
    for trajectory in trajectories:
        assert not trajectory.aborted
        assert trajectory.environment_s > 0
        assert trajectory.engine_s > 0
        observation = environment.reset(trajectory.task)
        assert trajectory.words == observation.task
        for step, turn in enumerate(trajectory.turns):
            tokens, params = asked[request_key(3, 5, trajectory.group, trajectory.member, step)]
            assert tokens == tuple(turn.prompt_tokens) == tuple(TOKENIZER.encode_chat(turn.prompt))
            assert (params.temperature, params.stop_strings) == (0.7, ("</action>",))
            assert (turn.observation, turn.anchor) == (observation.text, observation.anchor)
            assert turn.response == "so " + TOKENIZER.decode(turn.response_tokens.tolist())
            assert turn.logprobs.shape == turn.response_tokens.shape
            assert EXAMPLE.parse(turn.response) == Response(turn.action, turn.valid)
            assert turn.admissible == (turn.action in (observation.admissible or ()))
            assert turn.penalty == (0.0 if turn.valid else 0.25)
            assert turn.prompt.startswith("find the ")
            past = trajectory.turns[max(step - 2, 0) : step]
            assert turn.prompt.count("did") == bool(past)
            assert " ".join(earlier.action for earlier in past) in turn.prompt
            assert turn.prompt.split(" | ")[1:] == [earlier.observation for earlier in past]
            result = environment.step(turn.action)
            assert (turn.reward, turn.feedback) == (result.reward, result.observation.text)
            observation = result.observation
        assert (trajectory.won, trajectory.score) == (result.info["won"], result.info["score"])
        assert trajectory.total_reward == (10 if trajectory.won else 0)
        assert len(trajectory.turns) == 8 or trajectory.won
        assert trajectory.truncated == (len(trajectory.turns) == 8 and not trajectory.won)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert {turn.valid for turn in turns} == {turn.admissible for turn in turns} == {True, False}
    assert not any(turn.prompt_cut for turn in turns)


def test_prompts_that_are_shortened_are_counted() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        whole, tight = (
            play(pool, settings=dataclasses.replace(SETTINGS, prompt_tokens=n), groups=2)
            for n in (64, 20)
        )
    longest = max(len(turn.prompt_tokens) for trajectory in whole for turn in trajectory.turns)
    assert longest > 20
    turns = [turn for trajectory in tight for turn in trajectory.turns]
    cut = [turn.prompt_cut for turn in turns]
    assert 0 < sum(cut) < len(cut)
    assert rollout_metrics(tight, ())["prompt/truncated_fraction"] == pytest.approx(np.mean(cut))


def test_admissibility_does_not_count_and_greedy_is_another_temperature() -> None:
    engine = StandIn()
    strict = dataclasses.replace(
        SETTINGS,
        show_admissible=False,
        sampling=SamplingParams(temperature=0.0),
    )
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        trajectories = play(pool, engine, settings=strict)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    for turn in turns:
        assert turn.valid == (EXAMPLE.parse(turn.response).valid)
        assert turn.penalty == 0.25 * (not turn.valid)
        assert "can" not in turn.prompt.split()
    assert any(turn.valid and not turn.admissible for turn in turns)
    assert {params.temperature for _, params in engine.requests} == {0.0}


@pytest.mark.parametrize("workers", [1, 3])
def test_episodes_of_a_killed_worker_are_played_again_as_they_would_have_been(workers: int) -> None:
    with EnvPool(EXAMPLE.build, workers=workers, envs_per_worker=4) as pool:
        expected = play(pool)
        attempts: list[Trajectory] = []

        def kill_once(trajectory: Trajectory) -> None:
            if not attempts:
                os.kill(pool.pids[0], signal.SIGKILL)
            attempts.append(trajectory)

        hit = play(pool, on_attempt=kill_once)
        aborted = [trajectory for trajectory in attempts if trajectory.aborted]
        assert 1 <= len(aborted) <= 4
        assert all("died with status 137" in trajectory.reason for trajectory in aborted)
        assert not any(trajectory.won or trajectory.score for trajectory in aborted)
        assert sum(trajectory.policy_dependent for trajectory in aborted) <= 1, (
            "but for the call that it worked on"
        )
        assert len(attempts) == len(hit) + len(aborted)
        again = {(trajectory.group, trajectory.member) for trajectory in hit if trajectory.replayed}
        assert again == {(trajectory.group, trajectory.member) for trajectory in aborted}
        assert same(without_marks(hit), expected)
        assert pool.replaced == 1


def without_marks(trajectories: list[Trajectory]) -> list[Trajectory]:
    return [dataclasses.replace(trajectory, replayed=False) for trajectory in trajectories]


def test_engine_errors_cost_their_episodes_until_there_are_too_many() -> None:
    attempts: list[Trajectory] = []
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        expected = play(pool)
        hit = play(pool, StandIn(fail=0.02), on_attempt=attempts.append)
        aborted = [trajectory for trajectory in hit if trajectory.aborted]
        assert 0 < len(aborted) < 12
        assert len(attempts) == len(hit) + len(aborted), "each was tried twice, with the same keys"
        assert {trajectory.reason for trajectory in aborted} == {
            "engine: ValueError: this one is too much for me"
        }
        assert not any(trajectory.policy_dependent for trajectory in hit)
        assert all(
            same(trajectory, other_trajectory)
            for trajectory, other_trajectory in zip(hit, expected)
            if not trajectory.aborted
        )
        message = r"\d+ of 24 episodes were aborted, too many to continue: \d+ x engine: ValueError: this one is too much"
        with pytest.raises(RuntimeError, match=message):
            play(
                pool,
                StandIn(fail=0.5),
                settings=dataclasses.replace(SETTINGS, max_aborted_fraction=0.2),
            )
        assert same(play(pool), expected), "the pool is whole after a rollout that was given up"

        def broken(response: str) -> Any:
            raise ZeroDivisionError(response)

        with pytest.raises(ZeroDivisionError):  # a bug of ours is no aborted episode
            play(pool, settings=dataclasses.replace(SETTINGS, parse=broken))


def test_a_fraction_of_all_started_episodes_may_be_aborted_and_frequent_reasons_are_named() -> None:
    reasons = Counter({"a": 1, "b": 4, "c": 2, "d": 1})
    _check_aborted(reasons, 16, 0.5)
    with pytest.raises(TooManyAborted, match=r"^8 of 15 episodes .*: 4 x b; 2 x c; 1 x a$"):
        _check_aborted(reasons, 15, 0.5)
    with pytest.raises(TooManyAborted):
        _check_aborted(Counter({"a": 1}), 100, 0.0)


class ShortSighted(StandIn):
    """Refuses prompts that offer something to take."""

    async def generate(
        self, tokens: Sequence[int] | np.ndarray, params: SamplingParams
    ) -> Completion:
        if "take" in TOKENIZER.decode(list(tokens)).split():
            raise InputError(f"prompt has {len(tokens)} tokens")
        return await super().generate(tokens, params)


def test_aborts_that_depend_on_the_policy_are_marked() -> None:
    """Leaving these out is a selection: here all episodes that find the treasure."""
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        expected = play(pool)
        refused = play(
            pool, ShortSighted(), settings=dataclasses.replace(SETTINGS, max_aborted_fraction=1.0)
        )
    refusals = [
        any("take" in turn.prompt.split() for turn in trajectory.turns) for trajectory in expected
    ]
    assert [trajectory.aborted for trajectory in refused] == refusals
    assert [trajectory.policy_dependent for trajectory in refused] == refusals
    assert all(t.reason.startswith("engine: prompt has ") for t in refused if t.aborted)
    metrics = rollout_metrics(refused, ())
    assert (
        metrics["episode/aborted_policy_dependent"]
        == metrics["episode/aborted"]
        == sum(refusals)
        > 0
    )
    with EnvPool("tests.env_bridge.failing:DownEnv", workers=1, envs_per_worker=8) as pool:
        down = play(
            pool, groups=2, settings=dataclasses.replace(SETTINGS, max_aborted_fraction=1.0)
        )
    assert all(trajectory.aborted and not trajectory.policy_dependent for trajectory in down)


def test_a_reward_that_is_no_finite_number_costs_its_episode_alone() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        expected = play(pool)
    with EnvPool("tests.env_bridge.failing:NanOnClose", workers=1, envs_per_worker=8) as pool:
        hit = play(pool, settings=dataclasses.replace(SETTINGS, max_aborted_fraction=1.0))
    for trajectory, other_trajectory in zip(hit, expected, strict=True):
        closes = any(turn.action.startswith("close") for turn in other_trajectory.turns)
        assert (
            ("reward is nan; allowed" in trajectory.reason and trajectory.policy_dependent)
            if closes
            else same(trajectory, other_trajectory)
        )
    assert 0 < sum(trajectory.aborted for trajectory in hit) < len(hit)


def test_a_closed_pool_aborts_and_a_cancelled_rollout_gives_its_places_back() -> None:
    async def cancelled(pool: EnvPool) -> None:
        runner = EpisodeRunner(StandIn(), TOKENIZER, SETTINGS)
        running = asyncio.create_task(
            rollout(
                RolloutJob(pool.tasks("train"), group_size=4, iteration=0), {"": (runner, pool)}
            )
        )
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        asyncio.run(cancelled(pool))
        assert not any(trajectory.aborted for trajectory in play(pool))
    with pytest.raises(RuntimeError, match="the environment pool was closed"):
        play(pool)


@pytest.fixture(scope="module")
def small_games(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder with four small games."""
    data = tmp_path_factory.mktemp("games")
    generate_games(data, "train", 4, size="small")
    return str(data)


@pytest.fixture(scope="module")
def tiny_engine() -> Iterator[JaxEngine]:
    """The real engine with a tiny random model."""
    config = decoder.DecoderConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
    )
    params = decoder.init_params(config, jax.random.key(0), np.float32)
    settings = EngineSettings(slots=8, max_length=180, prefill_buckets=(160,), prefill_rows=(4,))
    with JaxEngine(config, params, settings, tokenizer=TOKENIZER) as engine:
        yield engine


@pytest.mark.parametrize("name", ["example", "alfworld"])
def test_the_real_engine_plays_the_same_way_in_any_company(
    name: str, tiny_engine: JaxEngine, small_games: str
) -> None:
    options = {"data": small_games} if name == "alfworld" else {}
    template = registry.find_style(name, "compact")
    settings = dataclasses.replace(SETTINGS, template=template, max_steps=3, prompt_tokens=160)
    with EnvPool(registry.spec(name).build, options, workers=2, envs_per_worker=6) as pool:
        crowd = play(pool, tiny_engine, settings=settings, groups=4, size=3)
    with EnvPool(registry.spec(name).build, options, workers=1, envs_per_worker=1) as pool:
        alone = play(pool, tiny_engine, settings=settings, groups=4, size=3)
    assert same(crowd, alone)
    assert not any(trajectory.aborted for trajectory in crowd)
    turns = [turn for trajectory in crowd for turn in trajectory.turns]
    assert len(turns) == 36
    assert all(0 < len(turn.response_tokens) <= 20 and np.all(turn.logprobs <= 0) for turn in turns)
    assert all(len(turn.prompt_tokens) <= 160 for turn in turns)
    assert len({turn.response for turn in turns}) > 30
