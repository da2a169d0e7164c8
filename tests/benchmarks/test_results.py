"""Archives of raw results: nothing is lost between a folder and its archive, and the index is true."""

import re
import shutil
import tarfile
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.results import Campaign, read_archive, unpack_campaign
from gigpo_jax.core.errors import InputError

DATA = {"a_seed0/config.json": b"{}", "a_seed0/evaluations/0.json": b"[1]", "b": b""}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a campaign that is not packed yet."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "CAMPAIGNS", {"games": Campaign("Games", "games.md")})
    write(tmp_path / "games", DATA)
    return tmp_path / "games"


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    return {path: file.read_bytes() for path, file in results.list_results(folder).items()}


def test_an_archive_has_all_files_and_its_bytes_follow_from_them(folder: Path, tmp_path: Path):
    assert results.main(["pack", "games"]) == 0
    packed = (tmp_path / "games.tar.xz").read_bytes()
    shutil.rmtree(folder)
    assert results.main(["unpack", "--all"]) == 0
    assert read(folder) == DATA
    assert results.main(["pack", "games"]) == 0
    assert (tmp_path / "games.tar.xz").read_bytes() == packed
    # Other programs read it, too.
    with tarfile.open(tmp_path / "games.tar.xz") as archive:
        assert archive.getnames() == [f"games/{path}" for path in sorted(DATA)]
        assert {member.mtime for member in archive} == {results.ARCHIVE_TIME}


def test_new_runs_are_added_to_a_folder_without_the_old_ones(folder: Path):
    results.pack_campaign("games")
    shutil.rmtree(folder)
    write(folder, {"a_seed1/config.json": b"new"})
    with pytest.raises(InputError, match=r"3 files .*; first: .* unpack games"):
        results.pack_campaign("games")
    unpack_campaign("games")
    assert results.pack_campaign("games") == 1
    assert read_archive("games") == {**DATA, "a_seed1/config.json": b"new"}


def test_a_changed_file_is_packed_only_on_demand_and_never_overwritten(folder: Path):
    results.pack_campaign("games")
    write(folder, {"b": b"longer"})
    for call in (results.pack_campaign, unpack_campaign):
        with pytest.raises(InputError, match=r"1 files .*\(b\).*--replace"):
            call("games")
    assert read(folder)["b"] == b"longer"
    assert results.pack_campaign("games", replace=True) == 0
    assert read_archive("games") == {**DATA, "b": b"longer"}


def test_a_folder_of_an_older_archive_becomes_that_of_the_newer_one(folder: Path, tmp_path: Path):
    results.pack_campaign("games")
    shutil.rmtree(folder)
    unpack_campaign("games")
    old = tmp_path / "old"
    folder.rename(old)
    (tmp_path / "games.tar.xz").unlink()
    newer = {"a_seed0/config.json": b"{}", "b": b"newer"}
    write(folder, newer)
    results.pack_campaign("games")
    shutil.rmtree(folder)
    old.rename(folder)
    write(folder, {"c_seed0/config.json": b"own"})
    # Old files do not get into the archive again.
    with pytest.raises(InputError, match="unpack games"):
        results.pack_campaign("games", replace=True)
    unpack_campaign("games")
    assert read(folder) == {**newer, "c_seed0/config.json": b"own"}
    assert not (folder / "a_seed0/evaluations").exists()


def test_unknown_campaigns_end_with_one_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    results.pack_campaign("games")
    assert results.main(["unpack", "gamse"]) == 2
    assert capsys.readouterr().err == "gamse: no such campaign; there are games\n"
    assert results.main(["pack", "gamse"]) == 2


def test_the_index_is_that_of_the_archives():
    page = (results.RESULTS / "README.md").read_text()
    assert page == results.make_index()
    assert results.list_archives() == sorted(results.CAMPAIGNS)
    links = re.findall(r"\]\((.+?)\)", page)
    assert len(links) == len(results.CAMPAIGNS)
    assert [link for link in links if not (results.RESULTS / link).is_file()] == []
