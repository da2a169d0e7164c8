"""Turns that hesitate as the turn before are sampled again, and what is thrown away is counted."""

import dataclasses
import functools

import numpy as np

from gigpo_jax.config import default_config
from gigpo_jax.engines.base import request_key
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.methods.t2po.episode_part import ResamplingPart
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.fork_starts import list_visits
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.trajectory import finished_steps
from tests.rollout.stand_in import EXAMPLE, SETTINGS, StandIn, play, same


class Unsure(StandIn):
    """Answers with one of four uncertainties, and remembers them by key."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[tuple[int, int], tuple[float, int]] = {}

    async def generate(self, tokens, params):
        completion = await super().generate(tokens, params)
        surprise = 0.25 * (1 + sum(params.key) % 4)
        logprobs = np.full(len(completion.tokens), -surprise, np.float32)
        self.answers[params.key] = (surprise, len(logprobs))
        return dataclasses.replace(completion, logprobs=logprobs)


def sample_again(repeats: int) -> EpisodeSettings:
    config = default_config()
    config.env.resample_turns = repeats
    return dataclasses.replace(SETTINGS, parts=[functools.partial(ResamplingPart, config)])


def play_turns(pool, settings=SETTINGS):
    engine = Unsure()
    return play(pool, engine, settings=settings, groups=3), engine


def test_a_turn_is_sampled_again_while_its_uncertainty_hardly_changes() -> None:
    again = sample_again(2)
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        trajectories, engine = play_turns(pool, again)
        repeated, _ = play_turns(pool, again)
        plain, _ = play_turns(pool)
        none, _ = play_turns(pool, sample_again(0))
    assert same(trajectories, repeated)
    assert same(plain, none)
    tokens = 0
    attempts_of_kept = set()
    for trajectory in trajectories:
        discarded = []
        previous = None
        for step, turn in enumerate(trajectory.turns):
            # By hand: 0.25 is the only difference between 0 and 0.3.
            for attempt in range(3):
                number = step + attempt * (SETTINGS.max_steps + 1)
                key = request_key(SETTINGS.seed, 5, trajectory.group, trajectory.member, number)
                surprise, length = engine.answers[key]
                if attempt == 2 or previous is None or abs(surprise - previous) != 0.25:
                    break
                discarded.append(length)
            assert -turn.logprobs[0] == surprise
            assert len(turn.response_tokens) == length
            attempts_of_kept.add(attempt)
            previous = surprise
        assert trajectory.discarded == discarded
        tokens += sum(discarded)
    assert attempts_of_kept == {0, 1, 2}

    metrics = rollout_metrics(trajectories, ())
    kept = sum(len(turn.response_tokens) for t in trajectories for turn in t.turns)
    assert metrics["rollout/discarded_tokens"] == tokens > 0
    assert metrics["rollout/generated_tokens"] == kept + tokens
    assert metrics["rollout/discarded_responses"] == sum(len(t.discarded) for t in trajectories)
    assert metrics["rollout/discarded_responses"] + len(finished_steps(trajectories)) == len(
        engine.answers
    )


def test_entropies_take_the_place_of_estimates() -> None:
    class Sure(Unsure):
        """The entropies are the estimates of the other one, the log-probabilities are not."""

        async def generate(self, tokens, params):
            completion = await super().generate(tokens, params)
            entropies = -completion.logprobs
            logprobs = entropies - 7.0 * np.arange(len(entropies), dtype=np.float32)
            return dataclasses.replace(completion, logprobs=logprobs, entropies=entropies)

    again = sample_again(2)
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        estimated, _ = play_turns(pool, again)
        known = play(pool, Sure(), settings=again, groups=3)
    assert any(trajectory.discarded for trajectory in known)
    assert [t.discarded for t in known] == [t.discarded for t in estimated]
    visits = list_visits([(t, number) for t in known for number in range(len(t.turns))])
    turns = [turn for trajectory in known for turn in trajectory.turns]
    np.testing.assert_allclose(visits.surprise, [turn.entropies.mean() for turn in turns])
