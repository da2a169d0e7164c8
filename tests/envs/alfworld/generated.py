"""Generated games that several test files play, as fixtures."""

import json
from pathlib import Path

import pytest

from gigpo_jax.envs.alfworld.data.one_split import generate_games

COUNT = 48  # games a split and size: eight of each task type


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with small rooms."""
    data = tmp_path_factory.mktemp("small")
    for split in ("train", "valid_seen", "valid_unseen"):
        generate_games(data, split, COUNT, seed=3, size="small")
    return data


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with full rooms."""
    data = tmp_path_factory.mktemp("full")
    for split in ("train", "valid_seen", "valid_unseen"):
        generate_games(data, split, COUNT, seed=3)
    return data


def read_walkthrough(path: Path) -> tuple[str, ...]:
    """The commands to the goal that the file of a generated game holds."""
    return tuple(json.loads(path.read_text())["walkthrough"])
