"""Rewards from regret: each wasted action costs its step, in every environment that tells it."""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import Compact, History, Prompt
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs import registry
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import Rollouts, collect_rollouts, write_rollouts
from gigpo_jax.tools.credit.replay import replay_episodes
from gigpo_jax.trajectory import StepCredit, Trajectory, finished_steps
from tests.rollout.stand_in import EXAMPLE, TOKENIZER, play

BUILD = registry.ENVIRONMENTS["numberline"].build
OPTIONS = {"observation": "text", "max_steps": 6, "regret": True}
# Words of the stand-in's tokenizer in place of signs.
SIGNS = {"open": "+", "close": "-"}
SETTINGS = EpisodeSettings(
    template=Compact(),
    parse=lambda text: Response(SIGNS[text.strip()], True),
    max_steps=6,
    prompt_tokens=64,
    show_admissible=False,
    sampling=SamplingParams(temperature=1.0, max_tokens=8),
)


class Walker:
    """A policy that walks up or down at random."""

    async def generate(
        self, tokens: Sequence[int] | np.ndarray, params: SamplingParams
    ) -> Completion:
        word = random.Random(str(params.key)).choice(list(SIGNS))
        ids = np.asarray(TOKENIZER.encode(word), np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), "stop", 0)

    def end_session(self, session: tuple[int, int]) -> None:
        pass


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvPool]:
    with EnvPool(BUILD, OPTIONS, workers=1, envs_per_worker=8) as started:
        yield started


def walk(pool: EnvPool, weight: float) -> list[Trajectory]:
    settings = dataclasses.replace(SETTINGS, regret_reward=weight)
    return play(pool, Walker(), groups=8, settings=settings)


def count_wasted(trajectory: Trajectory) -> list[float]:
    """Wasted moves of each step, by hand from the ends of the task's name."""
    current, target = map(int, trajectory.task.id.rpartition("/")[2].split("-"))
    wasted = []
    for turn in trajectory.turns:
        move = {"+": 1, "-": -1}[turn.action]
        following = min(max(current + move, 0), 5)
        # A move towards the target wastes 0, one at the end of the line 1, one away from it 2.
        wasted.append(float(abs(target - following) - abs(target - current) + 1))
        current = following
    return wasted


def test_a_step_loses_the_weight_for_each_action_that_it_wasted(pool: EnvPool) -> None:
    plain = walk(pool, 0.0)
    charged = walk(pool, 0.25)
    amounts = set()
    for trajectory, other_trajectory in zip(plain, charged, strict=True):
        wasted = count_wasted(trajectory)
        assert [turn.action for turn in trajectory.turns] == [
            turn.action for turn in other_trajectory.turns
        ]
        assert [turn.regret for turn in other_trajectory.turns] == wasted
        # 1 at the target, -1 for a move that does not bring it nearer, as the rules say.
        rewards = [-1.0 if amount else 0.0 for amount in wasted]
        rewards[-1] += trajectory.won
        assert [turn.reward for turn in trajectory.turns] == rewards
        assert [turn.reward for turn in other_trajectory.turns] == [
            reward - 0.25 * amount for reward, amount in zip(rewards, wasted, strict=True)
        ]
        assert (trajectory.won, trajectory.score) == (other_trajectory.won, other_trajectory.score)
        assert [turn.penalty for turn in other_trajectory.turns] == [0.0] * len(wasted)
        amounts.update(wasted)
    assert amounts == {0.0, 1.0, 2.0}


def test_an_environment_that_tells_no_regret_ends_the_rollout_with_a_fix() -> None:
    settings = dataclasses.replace(SETTINGS, regret_reward=0.25)
    with (
        EnvPool(EXAMPLE.build, workers=1, envs_per_worker=2) as drawers,
        pytest.raises(InputError, match=r"regret_reward.*does not tell.*use 0"),
    ):
        play(drawers, Walker(), groups=1, settings=settings)


def save(episodes: Sequence[Trajectory]) -> Rollouts:
    count = len(finished_steps(episodes))
    zeros = np.zeros(count, np.float32)
    credit = StepCredit(zeros, zeros, zeros, np.zeros(count, np.int64))
    return collect_rollouts(
        episodes,
        credit,
        None,
        gamma=1.0,
        iteration=0,
        temperature=1.0,
        decode=TOKENIZER.decode,
    )


def replay(rollouts: Rollouts, settings: EpisodeSettings) -> list[Trajectory]:
    def prompt(observation: Observation, history: History) -> tuple[Prompt, None]:
        built = build_prompt(
            SETTINGS.template,
            observation,
            history,
            encode=TOKENIZER.encode_chat,
            limit=64,
            show_admissible=False,
        )
        return built, None

    env = registry.make("numberline", **OPTIONS)
    return replay_episodes(env, rollouts.episodes, settings, prompt=prompt)


def test_saved_episodes_replay_with_the_rewards_of_the_run(pool: EnvPool, tmp_path: Path) -> None:
    """Files hold the regret too; a replay without the weight answers differently."""
    episodes = walk(pool, 0.25)
    path = tmp_path / "rollouts.jsonl.gz"
    write_rollouts(path, save(episodes))
    rollouts = read_rollouts(path)
    saved = [step.regret for episode in rollouts.episodes for step in episode.steps]
    assert saved == [turn.regret for episode in episodes for turn in episode.turns]
    settings = dataclasses.replace(SETTINGS, regret_reward=0.25)
    repeated = replay(rollouts, settings)
    assert [turn.reward for episode in repeated for turn in episode.turns] == [
        turn.reward for episode in episodes for turn in episode.turns
    ]
    with pytest.raises(InputError, match="answered the same actions differently"):
        replay(rollouts, SETTINGS)
