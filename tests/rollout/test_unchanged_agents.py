"""Agents of other interfaces are trained as they come."""

import json
from pathlib import Path

import pytest

from gigpo_jax.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "harness"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("RESPONSES", marks=pytest.mark.slow),
        pytest.param("MESSAGES", marks=pytest.mark.interfaces),
    ],
)
def test_an_unchanged_agent_trains_for_two_iterations(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    settings = {
        "env.name": f"tests.rollout.unchanged_agents:{name}",
        "env.workers": 1,
        "env.max_steps": 2,
        "serve.clamp": True,
        "train.iterations": 2,
        "train.groups": 2,
        "train.group_size": 4,
        "train.minibatch": 16,
        "train.save_rollouts": 1,
        "sampling.max_prompt_tokens": 200,
        "engine.slots": 8,
        "engine.prefill_rows": (4,),
        "engine.prefill_buckets": (200,),
        "batch.rows": 4,
        "batch.row_length": 256,
    }
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    assert main([f"--config={EXAMPLE / 'config.py'}", f"--workdir={tmp_path}", *flags]) == 0
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    iterations = [line for line in lines if "policy/loss" in line]
    assert len(iterations) == 2
    for metrics in iterations:
        assert metrics["batch/steps"] == 16
        # The temperature of the run, whatever the agent asked for.
        assert metrics["policy/behaviour_mismatch"] < 1e-4
    for field in ("model", "temperature"):
        assert caplog.text.count(f"serve.clamp: a request has {field}=") == 1
