"""Agent programs in real worker processes against a real endpoint: their sessions are the
trajectories of a rollout.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from configs import sokoban_text_tiny
from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.policy import load_policy
from gigpo_jax.rollout.environment import all_tasks, episode_settings, list_environments, make_pool
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.harness import HarnessRunner
from gigpo_jax.rollout.rollout import RolloutJob, TooManyAborted, rollout
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.trajectory import Trajectory
from tests.processes import patience

EXAMPLE = Path(__file__).parents[2] / "examples" / "harness"
PROMPT = 1024  # the longest of a library's


def small(config: ConfigDict) -> ConfigDict:
    """With few programs to compile."""
    config = config.unlock()
    config.engine.slots, config.engine.prefill_rows, config.env.workers = 8, (4,), 1
    config.sampling.max_prompt_tokens, config.batch.row_length = PROMPT, 2 * PROMPT
    config.engine.prefill_buckets = (40, PROMPT)
    return resolve(config.lock())


@pytest.fixture(scope="module")
def config() -> Iterator[ConfigDict]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield small(load_config(str(EXAMPLE / "config.py"), []))


@pytest.fixture(scope="module")
def worker(config: ConfigDict) -> Iterator[RolloutWorker]:
    policy = load_policy(config, make_mesh(data=1, fsdp=1, tensor=1))
    worker = RolloutWorker(
        config,
        policy,
        policy.params,
        environments=list_environments(config),
        version=3,
        folder=Path("unused"),
    )
    yield worker
    worker.close()


def test_a_program_plays_the_episodes_that_the_environment_itself_gives(
    config: ConfigDict, worker: RolloutWorker
):
    """The same prompts over HTTP and in process: the same tokens, log-probabilities, anchors,
    rewards and versions.
    """
    tasks = all_tasks(list_environments(config))[:2]
    theirs = asyncio.run(
        worker.play(RolloutJob(tasks, 2, iteration=0), temperature=1.0, title="test")
    )
    plain = small(sokoban_text_tiny.get_config())
    settings = episode_settings(
        plain, temperature=1.0, stop_token_ids=worker.tokenizer.stop_token_ids
    )
    runner = EpisodeRunner(worker.engine, worker.tokenizer, replace(settings, invalid_penalty=0.0))
    with make_pool(list_environments(plain)[0], 4) as pool:
        ours = asyncio.run(
            rollout(RolloutJob(tasks, group_size=2, iteration=0), {"": (runner, pool)})
        )

    def facts(trajectory: Trajectory) -> list:
        return [
            (
                trajectory.group,
                trajectory.member,
                trajectory.won,
                trajectory.score,
                trajectory.aborted,
            ),
            *(
                (
                    turn.prompt_tokens.tolist(),
                    turn.response_tokens.tolist(),
                    turn.logprobs.tolist(),
                    turn.response,
                )
                for turn in trajectory.turns
            ),
            *(
                (turn.anchor, turn.reward, turn.penalty, turn.version, turn.finish_reason)
                for turn in trajectory.turns
            ),
        ]

    assert list(map(facts, theirs)) == list(map(facts, ours))
    assert sum(len(trajectory.turns) for trajectory in ours) > 8
    assert all(trajectory.engine_s > 0 for trajectory in theirs)


def play(config: ConfigDict, worker: RolloutWorker, name: str, **env: float) -> list[Trajectory]:
    """Two episodes of a program of harnesses.py, at the worker's endpoint."""
    changed_config = ConfigDict(config.to_dict())
    changed_config.env.update({"name": f"tests.rollout.harnesses:{name}", **env})
    settings = episode_settings(
        changed_config, temperature=1.0, stop_token_ids=worker.tokenizer.stop_token_ids
    )
    runner = HarnessRunner(worker._endpoint, replace(settings, max_steps=4))
    with make_pool(list_environments(changed_config)[0], 2) as pool:
        return asyncio.run(
            rollout(
                RolloutJob(
                    all_tasks(list_environments(changed_config))[:1], group_size=2, iteration=0
                ),
                {"": (runner, pool)},
            )
        )


def test_an_agent_of_a_known_library_gives_trajectories(config: ConfigDict, worker: RolloutWorker):
    first, second = play(config, worker, "LIBRARY")
    assert not first.aborted, first.reason
    assert len(first.turns) == 3  # two steps, and the answer that it has to give then
    assert first.total_reward == first.turns[-1].reward > 0
    assert "you write code." in first.turns[0].prompt
    assert "0 plus 0" in first.turns[0].observation.lower()
    assert all(len(turn.response_tokens) == len(turn.logprobs) > 0 for turn in first.turns)
    assert all(turn.version == 3 for turn in first.turns)
    assert first.turns[0].response_tokens.tolist() != second.turns[0].response_tokens.tolist()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("RAISES", "no idea"),
        ("REFUSED", r"all calls .* were refused \(400: a prompt of 2000 tokens; at most"),
        pytest.param("SILENT", "posted no reward", marks=pytest.mark.slow),
        pytest.param("STOPS", "play raised StopIteration", marks=pytest.mark.slow),
        ("HANGS", "gave no answer within 1 s"),
    ],
)
def test_programs_that_fail_cost_their_episodes(
    config: ConfigDict, worker: RolloutWorker, name: str, says: str
):
    began = time.monotonic()
    with pytest.raises(TooManyAborted, match=says):
        play(config, worker, name, step_timeout_s=1.0 if name == "HANGS" else 60.0)
    assert time.monotonic() - began < patience(120)


def test_a_limit_of_an_episode_below_that_of_a_response_is_refused(config: ConfigDict):
    changed_config = ConfigDict(config.to_dict())
    changed_config.env.step_timeout_s = 60.0
    with pytest.raises(
        InputError, match=r"config\.env\.step_timeout_s=60\.0: .*engine\.request_timeout_s=600"
    ):
        resolve(changed_config)


def test_weights_that_are_more_than_one_update_old_are_refused(config: ConfigDict):
    changed_config = ConfigDict(config.to_dict())
    changed_config.train.max_staleness = 2
    with pytest.raises(
        InputError, match=r"config\.train\.max_staleness=2: .*; at most 1 with env\.name="
    ):
        resolve(changed_config)


def test_agents_with_prompts_of_their_own_are_refused(config: ConfigDict):
    changed_config = ConfigDict(config.to_dict())
    changed_config.agent = "react"
    with pytest.raises(
        InputError, match=r"config\.agent='react': the prompts are those of the harness"
    ):
        resolve(changed_config, trains=False)
