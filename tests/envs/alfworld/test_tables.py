"""Tables files of generated games say what the games' PDDL says, and are used for these alone."""

import sys
from pathlib import Path

import pytest

from gigpo_jax.envs.alfworld.engine import game_file
from gigpo_jax.envs.alfworld.engine.game_file import GameFile
from gigpo_jax.envs.alfworld.engine.load_game import TABLES_FILE, load_game
from gigpo_jax.envs.alfworld.engine.pddl_game import read_game
from tests.envs.alfworld.generated import full, small

__all__ = ["full", "small"]
READER = "gigpo_jax.envs.alfworld.engine.pddl_game"


@pytest.fixture
def game(small: Path, tmp_path: Path) -> Path:
    """A generated game that may be edited."""
    path = next((small / "train").rglob("game.tw-pddl"))
    for name in (path.name, TABLES_FILE):
        (tmp_path / name).write_bytes((path.parent / name).read_bytes())
    return tmp_path / path.name


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The games whose PDDL was read."""
    paths: list[str] = []

    def read(content: bytes, path: str) -> GameFile:
        paths.append(path)
        return read_game(content, path)

    monkeypatch.setattr(sys.modules[READER], "read_game", read)
    return paths


def content(game: GameFile) -> dict[str, object]:
    return {name: value for name, value in vars(game).items() if not name.startswith("_")}


@pytest.mark.parametrize("size", ["small", "full"])
def test_tables_are_those_of_the_pddl(
    size: str, request: pytest.FixtureRequest, reads: list[str]
) -> None:
    paths = list(request.getfixturevalue(size).rglob("game.tw-pddl"))
    reads.clear()  # the generator's
    for path in paths:
        assert content(load_game(path)) == content(read_game(path.read_bytes(), str(path)))
    assert reads == []
    assert len(paths) > 50


def test_a_game_without_tables_is_read_from_its_pddl(game: Path, reads: list[str]) -> None:
    (game.parent / TABLES_FILE).unlink()
    load_game(game)
    assert reads == [str(game)]


def test_tables_of_an_edited_game_are_not_used(game: Path) -> None:
    task = load_game(game).task
    text = game.read_text()
    assert f"Your task is to: {task}." in text
    game.write_text(text.replace(f"Your task is to: {task}.", "Your task is to: dance."))
    assert load_game(game).task == "dance"


def test_edited_tables_are_not_used(game: Path, reads: list[str]) -> None:
    task = load_game(game).task
    tables = game.parent / TABLES_FILE
    tables.write_bytes(tables.read_bytes().replace(task.encode(), b"dance"))
    assert load_game(game).task == task
    tables.write_bytes(b"")
    assert load_game(game).task == task
    assert reads == [str(game)] * 2


def test_tables_of_another_version_are_not_used(
    game: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(game_file, "VERSION", b"gigpo tables 0")
    load_game(game)
    assert reads == [str(game)]
