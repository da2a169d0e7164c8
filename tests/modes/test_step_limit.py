"""The limit of steps that grows over iterations: training episodes obey it, panels do not.

The run is one of conversations with summaries and kept responses, so its resumption shows that
these repeat too.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.rollout import worker as worker_module
from gigpo_jax.rollout.environment import RunEnvironment
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.step_limits import step_limit
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.run.newest import newest_record
from tests.metrics import records
from tests.runs import run


def limits(first: int, most: int, iterations: int, count: int) -> list[int]:
    env = ConfigDict(
        {"first_max_steps": first, "max_steps": most, "max_steps_iterations": iterations}
    )
    return [step_limit(env, iteration) for iteration in range(count)]


def test_the_limit_grows_linearly_to_its_end() -> None:
    assert limits(2, 6, 4, 6) == [2, 3, 4, 5, 6, 6]
    # 2 + floor(3 k / 7)
    assert limits(2, 5, 7, 9) == [2, 2, 2, 3, 3, 4, 4, 5, 5]
    assert limits(0, 50, 0, 2) == [50, 50]
    # The cut of TCOD with h = 6: 1 + floor(k / 6), at most 10.
    cut = [min(1 + iteration // 6, 10) for iteration in range(60)]
    assert limits(1, 10, 6 * (10 - 1), 60) == cut


def test_training_obeys_the_limit_of_its_iteration_and_evaluations_the_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = default_config()
    config.env.name, config.eval.trials = "example", 1
    config.env.first_max_steps, config.env.max_steps, config.env.max_steps_iterations = 1, 9, 4
    # A worker without engine and processes, whose settings are looked at.
    worker: Any = object.__new__(RolloutWorker)
    worker._environments = [RunEnvironment("", config, {})]
    worker._examples, worker._vision, worker.pools = {}, None, {"": None}
    worker.engine, worker.tokenizer = None, word_tokenizer([])

    async def read_limit(job: RolloutJob, players: Any) -> tuple[int, float]:
        settings = players[""][0].settings
        return settings.max_steps, settings.sampling.temperature

    monkeypatch.setattr(worker_module, "rollout", read_limit)

    def play(iteration: int, *, is_training: bool) -> Any:
        job = RolloutJob([Task("a", "", "train")], 1, iteration)
        playing = worker.play(job, temperature=0.25, title="", is_training=is_training)
        return asyncio.run(playing)

    limits = [play(iteration, is_training=True) for iteration in (0, 2, 4, 50)]
    assert limits == [(1, 0.25), (5, 0.25), (9, 0.25), (9, 0.25)]
    # Iterations of evaluations are negative numbers.
    assert [play(number, is_training=False) for number in (-1, 2)] == [(9, 0.25)] * 2


def longest_episodes(workdir: Path) -> list[int]:
    """Steps of the longest saved episode of each iteration."""
    lengths = []
    for path in sorted((workdir / "rollouts").iterdir()):
        lengths.append(max(episode.length for episode in read_rollouts(path).episodes))
    return lengths


def saved_texts(workdir: Path) -> list[list[tuple[str, str]]]:
    """Prompt and response of each step of the saved episodes."""
    episodes = []
    for path in sorted((workdir / "rollouts").iterdir()):
        for episode in read_rollouts(path).episodes:
            episodes.append([(step.prompt, step.response) for step in episode.steps])
    return episodes


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_limit_its_summaries_and_the_moments_of_task_types(
    flags: list[str], tmp_path: Path
) -> None:
    chosen = [
        *flags,
        "--config.env.first_max_steps=1",
        "--config.env.max_steps_iterations=2",
        "--config.rl.algorithm=ema_grpo",
        "--config.train.save_rollouts=1",
        "--config.eval.every=1",
        "--config.env.prompt=chat_compact",
        "--config.env.context=summary",
        "--config.sampling.max_summary_tokens=4",
        "--config.sampling.max_prompt_tokens=54",
        "--config.engine.prefill_buckets=()",
    ]
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    done = run(whole, "train", *chosen, "--config.train.iterations=3")
    assert done.returncode == 0, done.stderr
    assert json.loads((whole / "config.json").read_text())["engine"]["keep_responses"]
    for iterations in (1, 3):
        done = run(resumed, "train", *chosen, f"--config.train.iterations={iterations}")
        assert done.returncode == 0, done.stderr
    # From 1 to env.max_steps=4: 1 + floor(3 k / 2).
    assert longest_episodes(whole) == [1, 2, 4]
    assert longest_episodes(resumed) == [1, 2, 4]
    steps = records(whole)
    # Each iteration has written its own, one of which the resumed run began with.
    assert [step["rollout/summaries"] > 0 for step in steps[1:]] == [False, True, True]
    assert saved_texts(whole) == saved_texts(resumed)
    # No episode of one step finds the treasure; panels have the whole limit.
    assert steps[1]["episode/length"] == 1.0
    assert steps[1]["val/sampled/length"] > 1.0
    # The example types its tasks by their treasure.
    moments = newest_record(whole / "checkpoints")["task_moments"]
    assert 0 < len(moments) <= 3
    assert newest_record(resumed / "checkpoints")["task_moments"] == moments
    # Runs that end evaluate too, so only the metrics of training are compared.
    for step, resumed_step in zip(steps[1:], records(resumed)[1:], strict=True):
        assert {name: value for name, value in step.items() if not name.startswith("val/")} == {
            name: value for name, value in resumed_step.items() if not name.startswith("val/")
        }
