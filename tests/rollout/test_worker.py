"""Real worker processes and a real engine: what a worker is asked for is what it plays."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.policy import load_policy
from gigpo_jax.rollout import worker as worker_module
from gigpo_jax.rollout.environment import all_tasks, list_environments
from gigpo_jax.rollout.rollout import RolloutJob, TooManyAborted
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.run.progress import Bar
from tests.configs.example import get_config


def make_worker(flags: list[str], **env: str) -> RolloutWorker:
    """A worker with the warm start of other tests, whose programs there are already."""
    config = get_config()
    config.model.path = flags[0].partition("=")[2]
    config.env.update(env)
    config = resolve(config)
    policy = load_policy(config, make_mesh(data=1, fsdp=1, tensor=1))
    return RolloutWorker(
        config,
        policy,
        policy.params,
        environments=list_environments(config),
        version=0,
        folder=Path("unused"),
    )


@pytest.fixture(scope="module")
def worker(flags: list[str]) -> Iterator[RolloutWorker]:
    worker = make_worker(flags)
    yield worker
    worker.close()


def test_the_temperature_is_that_of_the_call_and_not_of_the_config(worker: RolloutWorker) -> None:
    config = resolve(get_config())
    tasks = all_tasks(list_environments(config))[:2]

    def responses(iteration: int, temperature: float) -> list[list[int]]:
        played = asyncio.run(
            worker.play(
                RolloutJob(tasks, 2, iteration=iteration), temperature=temperature, title="test"
            )
        )
        assert [(t.group, t.member, t.aborted) for t in played] == [
            (g, m, False) for g in (0, 1) for m in (0, 1)
        ]
        return [turn.response_tokens.tolist() for trajectory in played for turn in trajectory.turns]

    assert config.sampling.temperature == 1.0
    assert responses(0, 0.0) == responses(1, 0.0)  # greedy: other keys, the same responses
    assert responses(0, 1.0) == responses(0, 1.0)
    assert responses(0, 1.0) != responses(1, 1.0)


def test_exceptions_of_an_environment_are_shown_once_a_kind_and_escaped(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    worker = make_worker(flags, name="tests.env_bridge.failing:ESCAPING")
    try:
        tasks = worker.pools[""].tasks("train")[:2]
        with pytest.raises(TooManyAborted):
            asyncio.run(
                worker.play(RolloutJob(tasks, 2, iteration=0), temperature=1.0, title="test")
            )
    finally:
        worker.close()
    lines = [line for line in capsys.readouterr().out.splitlines() if "aborted" in line]
    assert len(lines) == 1
    assert lines[0].startswith("aborted an episode of task train/000")
    assert r"ValueError: episode " in lines[0]
    assert r"\x1b[2J\u202e is odd (failing.py:" in lines[0]


def test_the_bar_counts_prompts_before_the_first_response_ends(
    worker: RolloutWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(worker_module, "COUNT_S", 0.0)
    monkeypatch.setattr(Bar, "note", lambda _, text: notes.append(text))
    tasks = all_tasks(list_environments(resolve(get_config())))[:2]
    asyncio.run(worker.play(RolloutJob(tasks, 2, iteration=2), temperature=1.0, title="test"))
    counts = [re.match(r"([\d,]+) prompt tokens, ([\d,]+) sampled, \d+ tokens/s", n) for n in notes]
    assert all(counts)
    numbers = [tuple(int(n.replace(",", "")) for n in c.groups()) for c in counts if c]
    assert numbers == sorted(numbers)
    assert any(prompts and not sampled for prompts, sampled in numbers)
    assert numbers[-1][1]
