"""A short slice of the campaign (`make chaos` runs all of it); tests/test_faults.py fills disks."""

import random
from pathlib import Path

import pytest

from tests.chaos import campaign

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return campaign.make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("name", "times", "seed", "result"),
    [
        # After step 4 of 6.
        (
            "SIGKILL of the run at a random moment",
            1,
            10,
            {"while training, with a checkpoint": 1},
        ),
        ("SIGKILL of an environment worker", 1, 0, {}),
        ("flipped bit in a checkpoint", 20, 0, {"found, the checkpoint before used": 5}),
        ("flipped bit in a model folder", 20, 0, {"refused in one line": 5}),
        ("malformed results of an environment", 2, 0, {"iterations": 2}),
        ("hostile text", 10, 0, {"iterations": 10}),
    ],
)
def test_a_run_survives(
    name: str, times: int, seed: int, result: dict[str, int], model: Path, tmp_path: Path
) -> None:
    case, _ = campaign.CASES[name]
    outcome = case(tmp_path, model, random.Random(seed), times)
    assert {what: min(outcome[what], result[what]) for what in result} == result, outcome
