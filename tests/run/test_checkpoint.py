"""Checkpoints: bit-exact, whole or not at all, the newest readable one wins."""

import json
import logging
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.errors import InputError
from gigpo_jax.rl.update import TrainState, init_state, make_optimizer
from gigpo_jax.run.checkpoint import Checkpointer, newest_params


def make_state(seed: int) -> TrainState:
    rng = np.random.default_rng(seed)
    params = {
        "embed": jnp.asarray(rng.normal(size=(7, 4)), jnp.float32),
        "layers": {"kernel": jnp.asarray(rng.normal(size=(2, 4, 4)), jnp.bfloat16), "bias": jnp.zeros((2, 4))},
    }
    state = init_state(params, make_optimizer(lr=1e-3))
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
        checkpoints.save(i, make_state(i), {"iteration": i, "cursor": [i, 2 * i], "name": "höhle"})
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_restores_the_last_one_bit_for_bit_and_keeps_two(folder: Path) -> None:
    checkpoints = Checkpointer(folder, keep=2)
    state, record = checkpoints.restore(make_state(9))
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
    checkpoints.save(1, state, {})
    for _ in range(5):
        state = overwrite(state)
    restored, _ = checkpoints.restore(state)
    np.testing.assert_array_equal(np.asarray(restored.params["kernel"]), np.arange(4_000_000, dtype=np.float32))
    checkpoints.close()


@pytest.mark.parametrize("damage", ["array", "record", "half"])
def test_a_damaged_checkpoint_is_passed_over_and_replaced(folder: Path, damage: str, caplog) -> None:
    newest = folder / "3"
    if damage == "array":  # every data file cut in half
        for file in (newest / "rest").rglob("*"):
            if file.is_file() and file.stat().st_size > 64:
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "record":
        (newest / "record" / "metadata").write_text('{"iteration": ')
    else:  # as a killed run leaves it
        newest.rename(folder / "3.orbax-checkpoint-tmp-17")
    checkpoints = Checkpointer(folder, keep=2)
    with caplog.at_level(logging.WARNING, logger="gigpo_jax.run.checkpoint"):
        state, record = checkpoints.restore(make_state(9))
    assert record["iteration"] == 2
    assert_same(state, make_state(2))
    assert ("passed over" in caplog.text) == (damage != "half")
    checkpoints.save(3, make_state(30), {"iteration": 3})
    checkpoints.close()
    again = Checkpointer(folder, keep=2)
    state, record = again.restore(make_state(9))
    assert_same(state, make_state(30))
    again.close()


def test_when_none_can_be_read_that_is_an_error(folder: Path) -> None:
    for newest in folder.iterdir():
        (newest / "record" / "metadata").write_text("no json")
    checkpoints = Checkpointer(folder)
    with pytest.raises(InputError, match="none of its 2 checkpoints can be read"):
        checkpoints.restore(make_state(9))
    checkpoints.close()


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    checkpoints = Checkpointer(tmp_path / "new")
    assert checkpoints.restore(make_state(0)) is None
    checkpoints.close()
    params, iteration = newest_params(tmp_path / "absent", make_state(0).params)
    assert iteration == 0
    assert_same(params, make_state(0).params)


def test_a_record_that_json_cannot_hold_fails_at_once(tmp_path: Path) -> None:
    checkpoints = Checkpointer(tmp_path)
    with pytest.raises(TypeError):
        checkpoints.save(1, make_state(0), {"array": np.zeros(3)})
    assert json.dumps(checkpoints.iterations()) == "[]"
    checkpoints.close()


def test_a_file_in_the_way_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(InputError, match="choose another --workdir"):
        Checkpointer(tmp_path / "checkpoints")
