"""Compiled programs are kept, and what is wrong with the folder stops no run."""

import lzma
import os
import subprocess
import sys
from pathlib import Path

import jax
import jaxlib
import pytest
from jax._src import compilation_cache

from gigpo_jax.devices import program_cache

# Prints a number that a program computes, and how many programs were not compiled.
PROGRAM = """
import jax
import jax.numpy as jnp
from gigpo_jax.devices import program_cache
from gigpo_jax.run.console import prepare_console

prepare_console()
program_cache.MIN_COMPILE_S = 0.0
hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
)
program_cache.use_program_cache()
print(float(jax.jit(lambda x: jnp.sin(x @ x.T).sum())(jnp.ones((8, 8)))), len(hits) > 0)
"""


def start(cache: Path, **variables: str) -> subprocess.Popen[str]:
    # The suite has a folder of its own for programs.
    suite = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = suite | {"GIGPO_JAX_CACHE": str(cache)} | variables
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, bool, str]:
    """The number, whether a program was read, and the warnings."""
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    number, hit = output.split()
    return number, hit == "True", errors


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("programs/*/*-cache"))


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, str]:
    """A folder with programs, and the number that they computed."""
    number, hit, errors = finish(start(tmp_path / "cache"))
    assert (hit, errors) == (False, "")
    assert entries(tmp_path / "cache")
    return tmp_path / "cache", number


def test_the_second_start_reads_the_programs_of_the_first(filled: tuple[Path, str]) -> None:
    cache, number = filled
    assert finish(start(cache)) == (number, True, "")
    [folder] = (cache / "programs").iterdir()
    assert folder.name.startswith(f"jax-{jax.__version__}_jaxlib-{jaxlib.__version__}_cpu-")


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 40, -3])
def test_a_truncated_program_is_compiled_again(filled: tuple[Path, str], kept: int) -> None:
    cache, number = filled
    damaged = len(entries(cache))
    for path in entries(cache):
        path.write_bytes(path.read_bytes()[:kept])
    again, hit, errors = finish(start(cache))
    assert (again, hit) == (number, False)
    assert errors.count("a damaged entry, removed\n") == len(errors.splitlines()) == damaged > 0
    assert finish(start(cache)) == (number, True, "")


def test_entries_may_have_another_compression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax uses zstd on some installations; the standard library has lzma to stand for it."""
    monkeypatch.setattr(compilation_cache, "decompress_executable", lzma.decompress)
    path = tmp_path / "entry"
    path.write_bytes(lzma.compress(b"program"))
    assert program_cache._is_whole(path)
    path.write_bytes(lzma.compress(b"program")[:-3])
    assert not program_cache._is_whole(path)


@pytest.mark.slow
def test_an_entry_without_its_access_time_does_not_stop_others(filled: tuple[Path, str]) -> None:
    cache, number = filled
    for path in cache.glob("programs/*/*-atime"):
        path.unlink()
    again, hit, _ = finish(start(cache))
    assert (again, hit) == (number, False)
    assert finish(start(cache)) == (number, True, "")


@pytest.mark.slow
def test_two_starts_at_once(tmp_path: Path) -> None:
    results = [finish(process) for process in [start(tmp_path), start(tmp_path)]]
    assert results[0][0] == results[1][0]
    assert [errors for _, _, errors in results] == ["", ""]
    assert finish(start(tmp_path)) == (results[0][0], True, "")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_one_warning(filled: tuple[Path, str]) -> None:
    cache, number = filled
    file = cache.parent / "file"
    file.write_text("")
    again, hit, errors = finish(start(file / "cache"))
    assert (again, hit) == (number, False)
    assert errors.startswith("WARNING compiled programs are not kept: ")
    assert len(errors.splitlines()) == 1


@pytest.mark.slow
def test_the_switch_and_the_folder_of_the_user(filled: tuple[Path, str], tmp_path: Path) -> None:
    cache, number = filled
    assert finish(start(cache, JAX_ENABLE_COMPILATION_CACHE="false")) == (number, False, "")
    other = tmp_path / "other"
    finish(start(tmp_path / "unused", JAX_COMPILATION_CACHE_DIR=str(other)))
    assert not (tmp_path / "unused").exists()
