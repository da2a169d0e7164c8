"""Checkpoints: bit-exact, whole or not at all, the newest readable one wins."""

import contextlib
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError, StorageError
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import TrainState, init_state
from gigpo_jax.run.checkpoint import OLDER, Checkpointer, parts_of
from gigpo_jax.run.checksums import checksum
from gigpo_jax.run.newest import newest_params
from gigpo_jax.run.state_checkpoints import restore_state, save_state
from tests.small_disk import SmallDisk


def make_state(seed: int) -> TrainState:
    rng = np.random.default_rng(seed)
    params = {
        "embed": jnp.asarray(rng.normal(size=(7, 4)), jnp.float32),
        "layers": {
            "kernel": jnp.asarray(rng.normal(size=(2, 4, 4)), jnp.bfloat16),
            "bias": jnp.zeros((2, 4)),
        },
    }
    state = init_state(params, make_optimizer(lr=1e-3, name="muon"))
    return jax.tree.map(lambda x: x + jnp.asarray(rng.integers(0, 9, x.shape), x.dtype), state)


def assert_same(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Three checkpoints written in a row, of which the last two stay."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpointer(folder, keep=2)
    for i in (1, 2, 3):
        save_state(
            checkpoints, i, make_state(i), {"iteration": i, "cursor": [i, 2 * i], "name": "höhle"}
        )
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_restores_the_last_one_bit_for_bit_and_keeps_two(folder: Path) -> None:
    checkpoints = Checkpointer(folder, keep=2)
    state, record = restore_state(checkpoints, make_state(9))
    assert_same(state, make_state(3))
    assert record == {"iteration": 3, "cursor": [3, 6], "name": "höhle"}
    assert checkpoints.iterations() == [2, 3]
    checkpoints.close()
    params, iteration = newest_params(folder, make_state(9).params)
    assert iteration == 3
    assert_same(params, make_state(3).params)


def test_the_state_may_be_overwritten_while_it_is_written(tmp_path: Path) -> None:
    checkpoints = Checkpointer(tmp_path, keep=1)
    state = {"kernel": jnp.arange(4_000_000, dtype=jnp.float32)}
    state = init_state(state, make_optimizer(lr=1e-3))
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)
    save_state(checkpoints, 1, state, {})
    for _ in range(5):
        state = overwrite(state)
    restored, _ = restore_state(checkpoints, state)
    np.testing.assert_array_equal(
        np.asarray(restored.params["kernel"]), np.arange(4_000_000, dtype=np.float32)
    )
    checkpoints.close()


@pytest.mark.parametrize("damage", ["array", "arrays of another", "record", "half"])
def test_a_damaged_checkpoint_is_passed_over_and_replaced(
    folder: Path, damage: str, caplog
) -> None:
    newest = folder / "3"
    if damage == "array":  # every data file cut in half
        for file in (newest / "rest").rglob("*"):
            if file.is_file() and file.stat().st_size > 64:
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "arrays of another":  # files that can be read, which only a checksum tells
        shutil.rmtree(newest / "rest")
        shutil.copytree(folder / "2" / "rest", newest / "rest")
    elif damage == "record":
        (newest / "record" / "metadata").write_text('{"iteration": ')
    else:  # as a killed run leaves it
        newest.rename(folder / "3.orbax-checkpoint-tmp-17")
    checkpoints = Checkpointer(folder, keep=2)
    with caplog.at_level(logging.WARNING, logger="gigpo_jax.run.checkpoint"):
        state, record = restore_state(checkpoints, make_state(9))
    assert record["iteration"] == 2
    assert_same(state, make_state(2))
    assert ("checkpoint 3 in" in caplog.text and "is damaged" in caplog.text) == (damage != "half")
    assert ("using checkpoint 2 in" in caplog.text) == (damage != "half")
    save_state(checkpoints, 3, make_state(30), {"iteration": 3})
    checkpoints.close()
    again = Checkpointer(folder, keep=2)
    state, record = restore_state(again, make_state(9))
    assert_same(state, make_state(30))
    again.close()


@pytest.fixture
def flipped(saved: Path, tmp_path: Path) -> dict[str, Path]:
    """For each file of the newest checkpoint a copy of the folder in which a bit or two of that
    file differ.
    """
    rng = np.random.default_rng(5)
    folders = {}
    for number, name in enumerate(
        sorted(p.relative_to(saved) for p in (saved / "3").rglob("*") if p.is_file())
    ):
        folders[f"{name}"] = folder = shutil.copytree(saved, tmp_path / f"{number}")
        content = bytearray((folder / name).read_bytes())
        for _ in range(1 + number % 2):
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        (folder / name).write_bytes(content)
    return folders


def test_no_flipped_bit_is_taken_for_another_state(flipped: dict[str, Path]) -> None:
    expected = {
        i: (make_state(i), {"iteration": i, "cursor": [i, 2 * i], "name": "höhle"}) for i in (2, 3)
    }
    iterations = []
    for name, folder in flipped.items():
        checkpoints = Checkpointer(folder)
        state, record = restore_state(checkpoints, make_state(9))
        checkpoints.close()
        iterations.append(record["iteration"])
        assert record == expected[record["iteration"]][1], name
        assert_same(state, expected[record["iteration"]][0])
    assert {2, 3} == set(iterations)


FAULTS = """
import asyncio, gc, resource, sys
import tensorstore
from orbax.checkpoint._src.serialization import serialization
from gigpo_jax.core.errors import StorageError
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.run.state_checkpoints import restore_state, save_state
from tests.run.test_checkpoint import make_state

async def leave(error):
    asyncio.get_running_loop().create_future().set_exception(error)

for folder in sys.argv[1:]:
    checkpoints = Checkpointer(folder)
    restore_state(checkpoints, make_state(9))
    gc.collect()
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
try:
    save_state(checkpoints, 4, make_state(4), {})
    checkpoints.wait()
except StorageError as error:
    print(error)
# What Orbax leaves behind in some of such runs only: a task that never began, a read and a write
# that nobody awaits.
serialization.async_serialize_from_host(None, {})
asyncio.run(leave(tensorstore.open({"driver": "zarr", "kvstore": f"file://{folder}/no/"}).exception()))
asyncio.run(leave(tensorstore.KvStore.open(f"file://{folder}/").result().write(b"a", b"x" * 1000).exception()))
asyncio.run(leave(ValueError("ours")))
"""


@pytest.mark.slow
def test_orbax_adds_nothing_to_our_own_lines(flipped: dict[str, Path]) -> None:
    command = [
        sys.executable,
        "-c",
        FAULTS,
        *flipped.values(),
    ]  # its own process: pytest has hooks of its own
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert "a checkpoint cannot be written (File too large)" in done.stdout
    *lines, _, _, ours = done.stderr.splitlines()
    assert ours == "ValueError: ours"
    assert lines
    assert all("checkpoint 3 in " in line or "using checkpoint 2 in " in line for line in lines), (
        lines
    )


def test_a_checkpoint_of_another_number_is_passed_over(folder: Path, caplog) -> None:
    shutil.copytree(folder / "3", folder / "7")
    checkpoints = Checkpointer(folder, keep=3)
    with caplog.at_level(logging.WARNING, logger="gigpo_jax.run.checkpoint"):
        _, record = restore_state(checkpoints, make_state(9))
    checkpoints.close()
    assert record["iteration"] == 3
    assert "checkpoint 7 in" in caplog.text
    assert "its record is that of checkpoint 3" in caplog.text


@pytest.mark.parametrize("target", ["3", "7", "nothing"])
def test_a_link_among_the_checkpoints_is_named(folder: Path, target: str) -> None:
    (folder / "7").symlink_to(folder / target)
    with pytest.raises(InputError, match="/7: a link; checkpoints are folders; replace it"):
        Checkpointer(folder)


def test_checkpoints_that_are_a_link_to_nothing_are_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="checkpoints is a link to nothing; mend the link"):
        Checkpointer(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOENT, "No such file or directory.*free space or mend the disk.*it starts again"),
        (errno.EMFILE, r"Too many open files.; raise the limit of open files .ulimit -n., then"),
    ],
)
def test_a_deleted_folder_and_too_many_open_files_are_one_line(
    tmp_path: Path, code: int, message: str
) -> None:
    checkpoints = Checkpointer(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StorageError, match=message), checkpoints._storage_errors():
        raise OSError(code, os.strerror(code))


IMPORT = """
import logging, sys, warnings
import gigpo_jax.run.checkpoint
assert sys.unraisablehook is sys.__unraisablehook__
assert not logging.getLogger("absl").filters + logging.getLogger("asyncio").filters
assert not any(str(entry[1]).count("never awaited") for entry in warnings.filters)
"""


def test_an_import_changes_no_global_hook() -> None:
    subprocess.run([sys.executable, "-c", IMPORT], check=True, timeout=240)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_])
def test_a_checksum_sees_every_changed_element(dtype) -> None:
    array = np.asarray(np.random.default_rng(0).normal(size=(3, 5)) > 0, dtype)
    sums = {checksum({"a": array})}
    for place in np.ndindex(array.shape):
        changed = array.copy()
        changed[place] = not changed[place]
        sums.add(checksum({"a": changed}))
    swapped = array.copy()
    swapped[0, 0], swapped[1, 1] = not array[0, 0], not array[1, 1]
    assert len(sums | {checksum({"a": swapped}), checksum({})}) == 18


def test_reading_leaves_what_a_run_is_writing_alone(folder: Path) -> None:
    half = folder / "4.orbax-checkpoint-tmp-17"
    half.mkdir()
    assert newest_params(folder, make_state(9).params)[1] == 3
    assert half.exists()


@pytest.mark.parametrize(("keep", "left"), [(1, 0), (1, 40), (2, 60)])  # KiB
def test_a_full_disk_is_one_line_and_the_last_good_checkpoint_stays(
    keep: int, left: int, small_disk: SmallDisk, capfd
) -> None:
    disk = small_disk(400)
    checkpoints = Checkpointer(disk / "checkpoints", keep=keep)
    save_state(checkpoints, 1, make_state(1), {"iteration": 1})
    checkpoints.wait()
    (disk / "other").write_bytes(b"x" * (shutil.disk_usage(disk).free - left * 1024))
    with pytest.raises(StorageError) as error:  # noqa: PT012
        save_state(checkpoints, 2, make_state(2), {"iteration": 2})
        checkpoints.wait()
    assert "(No space left on device)" in str(error.value)
    assert str(error.value).endswith("run the same command: it continues from checkpoint 1")
    assert "\n" not in str(error.value)
    with contextlib.suppress(StorageError):  # told again
        checkpoints.close()
    assert capfd.readouterr() == ("", "")
    (disk / "other").unlink()
    checkpoints = Checkpointer(disk / "checkpoints", keep=keep)
    state, record = restore_state(checkpoints, make_state(9))
    assert record == {"iteration": 1}
    assert_same(state, make_state(1))
    checkpoints.close()


def test_when_none_can_be_read_that_is_an_error(folder: Path) -> None:
    for newest in folder.iterdir():
        (newest / "record" / "metadata").write_text("no json")
    checkpoints = Checkpointer(folder)
    with pytest.raises(InputError, match="none of its 2 checkpoints can be read"):
        restore_state(checkpoints, make_state(9))
    checkpoints.close()


def test_a_part_that_was_not_saved_is_not_called_damage(folder: Path) -> None:
    checkpoints = Checkpointer(folder)
    state = make_state(9)
    expected = parts_of(state) | {OLDER: [state.params]}
    with pytest.raises(
        InputError,
        match=r"has no older: .* another config .*config\.json.* `gigpo export`, .* --workdir$",
    ):
        checkpoints.restore_parts(expected)
    checkpoints.close()


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    checkpoints = Checkpointer(tmp_path / "new")
    assert restore_state(checkpoints, make_state(0)) is None
    checkpoints.close()
    params, iteration = newest_params(tmp_path / "absent", make_state(0).params)
    assert iteration == 0
    assert_same(params, make_state(0).params)


def test_a_record_that_json_cannot_hold_fails_at_once(tmp_path: Path) -> None:
    checkpoints = Checkpointer(tmp_path)
    with pytest.raises(TypeError):
        save_state(checkpoints, 1, make_state(0), {"array": np.zeros(3)})
    assert json.dumps(checkpoints.iterations()) == "[]"
    checkpoints.close()


def test_reading_makes_no_folder(tmp_path: Path) -> None:
    like = make_state(9).params
    assert newest_params(tmp_path / "checkpoints", like) == (like, 0)
    assert not list(tmp_path.iterdir())


def test_too_little_memory_is_not_taken_for_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpointer(folder)

    def out_of_memory(*_: object) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes")

    monkeypatch.setattr("gigpo_jax.run.restore.read_checkpoint", out_of_memory)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        restore_state(checkpoints, make_state(9), None)


def test_a_file_in_the_way_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(InputError, match=r"cannot be written \(Not a directory\)"):
        Checkpointer(tmp_path / "checkpoints")
