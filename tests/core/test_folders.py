"""Folders that appear whole or not at all."""

from pathlib import Path

import pytest

from gigpo_jax.core.folders import replace_folder


def _fill(path: Path, text: str, **options: bool) -> None:
    with replace_folder(path, **options) as folder:
        (folder / "file").write_text(text)


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "parent" / "folder"
    with replace_folder(path) as folder:
        (folder / "file").write_text("one")
        assert not path.exists()
    assert (path / "file").read_text() == "one"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_with_files_is_replaced_only_if_that_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    _fill(path, "one")
    with pytest.raises(OSError, match="not empty"):
        _fill(path, "two")
    assert (path / "file").read_text() == "one"
    with open(path / "file") as old:
        _fill(path, "three", full=True)
        assert old.read() == "one"
    assert (path / "file").read_text() == "three"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_raises_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    _fill(path, "one")
    with pytest.raises(TypeError):
        _fill(path, 3, full=True)  # type: ignore[arg-type]  # write_text raises
    assert (path / "file").read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
