"""The committed runs behind docs/evidence.md can be compared, and are those of the config."""

import runpy
from pathlib import Path

import pytest

from gigpo_jax.compare.runs import arms_of, check_comparable, read_run
from gigpo_jax.config import resolve
from gigpo_jax.config.tree import flat

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "tasks"), [("alfworld_long", 128), ("webshop_long", 125), ("sokoban_text_tiny", 384)])
def test_the_committed_runs_are_comparable_and_of_the_config_as_it_is(name: str, tasks: int) -> None:
    runs = [read_run(folder) for folder in sorted((ROOT / "benchmarks/results" / name).iterdir())]
    check_comparable(runs)
    assert len(arms_of(runs)) >= 3
    config = flat(resolve(runpy.run_path(str(ROOT / f"configs/{name}.py"))["get_config"]()).to_dict())
    for key in ("env.max_steps", "model.path", "optim.lr", "train.iterations", "train.groups", "train.minibatch"):
        assert {run.config[key] for run in runs} == {config[key]}, key
    assert {len(run.tasks) for run in runs} == {tasks}
