"""The committed runs behind docs/evidence.md can be compared, and fit the config."""

import runpy
from pathlib import Path

import pytest

from benchmarks.results import find_campaign
from gigpo_jax.config import resolve
from gigpo_jax.config.keys import flatten
from gigpo_jax.tools.compare.runs import check_comparable, group_arms, read_run

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "tasks"), [("alfworld_long", 128), ("webshop_long", 125), ("sokoban_text_tiny", 384)]
)
def test_the_committed_runs_are_comparable_and_of_the_config_as_it_is(
    name: str, tasks: int
) -> None:
    runs = [read_run(folder) for folder in sorted(find_campaign(name).iterdir())]
    check_comparable(runs)
    assert len(group_arms(runs)) >= 3
    config = flatten(
        resolve(runpy.run_path(str(ROOT / f"configs/{name}.py"))["get_config"]()).to_dict()
    )
    for key in (
        "env.max_steps",
        "model.path",
        "optim.lr",
        "train.iterations",
        "train.groups",
        "train.minibatch",
    ):
        assert {run.config[key] for run in runs} == {config[key]}, key
    assert {len(run.tasks) for run in runs} == {tasks}
