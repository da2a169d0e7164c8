"""A short slice of the campaign (`make chaos` runs all of it)."""

import random
from pathlib import Path

import pytest

from tests.chaos import campaign

pytestmark = pytest.mark.slow


def test_a_run_survives_a_kill(tmp_path: Path) -> None:
    outcome = campaign.kills(
        tmp_path, campaign.make_model(tmp_path), random.Random(10), 1
    )  # after step 4 of 6
    assert outcome["while training, with a checkpoint"] == 1


def test_a_run_survives_flipped_bits(tmp_path: Path) -> None:
    outcome = campaign.checkpoint_bits(tmp_path, tmp_path, random.Random(0), 20)
    assert outcome["found, the checkpoint before used"] > 0
