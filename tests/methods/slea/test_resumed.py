"""A run with a library shows the same lessons after it was stopped and resumed."""

import json
from pathlib import Path

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.envs import registry
from gigpo_jax.modes import evaluate, sft, train
from gigpo_jax.rollout.read_record import read_rollouts
from tests.configs.example import get_config
from tests.metrics import records

pytestmark = pytest.mark.slow


def test_lessons_are_written_shown_and_resumed_exactly(tmp_path: Path) -> None:
    def make_config(iterations: int):
        config = get_config().unlock()
        config.model.path = str(tmp_path / "sft" / "model")
        config.rl.algorithm = "slea"
        config.eval.panel = str(tmp_path / "panel.json")
        config.eval.tasks = 4
        # As often in a run that ends earlier.
        config.eval.every = 1
        config.eval.greedy = False
        config.train.experience = 1
        config.train.iterations = iterations
        config.train.save_rollouts = config.checkpoint.every = 1
        config.checkpoint.keep = 3
        config.sampling.max_prompt_tokens = 80
        config.engine.prefill_buckets = (80,)
        config.batch.row_length = 96
        return resolve(config)

    env = registry.make("example", drawers=2, games=16)
    write_panel(tmp_path / "panel.json", freeze_panel("panel", "example", env, "test"))

    def run(name: str, iterations: int) -> Path:
        assert train.run(make_config(iterations), tmp_path / name, "") == 0
        return tmp_path / name

    def library(workdir: Path, step: int):
        path = workdir / f"checkpoints/{step}/record/metadata"
        return json.loads(path.read_text())["record"]["library"]

    def prompts(path: Path) -> list[str]:
        return [step.prompt for episode in read_rollouts(path).episodes for step in episode.steps]

    config = get_config().unlock()
    config.sft.episodes, config.sft.epochs = 192, 12
    assert sft.run(resolve(config), tmp_path / "sft", "") == 0
    whole = run("whole", 3)
    stopped = run("stopped", 2)
    run("stopped", 3)
    assert records(stopped) == records(whole)
    for step in (1, 2, 3):
        assert library(stopped, step) == library(whole, step)
    assert library(whole, 3)["updates"] == 3
    entries = library(whole, 1)["entries"]
    assert entries["strategies"]
    assert entries["warnings"]
    files = sorted((whole / "rollouts").iterdir())
    shown = [sum(" tip " in p or " avoid " in p for p in prompts(file)) for file in files]
    assert shown[0] == 0 < shown[1]
    last = records(whole)[-1]
    assert last["experience/strategies"] == len(library(whole, 3)["entries"]["strategies"])
    # gigpo eval shows the library of the newest checkpoint, as the last evaluation of the run did.
    assert evaluate.run(make_config(3), whole, str(tmp_path / "eval.json")) == 0
    outcomes = json.loads((tmp_path / "eval.json").read_text())["outcomes"]
    at_end = json.loads((whole / "evaluations/iteration_000003.json").read_text())["results"]
    assert outcomes["sampled"] == at_end["sampled"]
    (sampled,) = tmp_path.glob("eval_sampled*")
    assert any(" tip " in prompt for prompt in prompts(sampled))
