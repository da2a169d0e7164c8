"""A small synthetic world with its index, made once."""

from pathlib import Path

import pytest

from gigpo_jax.envs.search.data.generate import write_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpus.jsonl, train.jsonl, test.jsonl and index/."""
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, people=48)
    return folder
