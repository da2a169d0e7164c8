"""Meshes and shardings; sharded equals unsharded, two hosts equal one (in processes of their
own).
"""

import os
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.exchange import local_rows
from gigpo_jax.devices.mesh import AXES, gathered, learner_mesh, make_mesh, shard_by_rules
from gigpo_jax.devices.mesh_grid import arrange_devices
from gigpo_jax.models import decoder
from gigpo_jax.models.published import PUBLISHED
from tests.devices import multi_device
from tests.processes import patience

PROGRAM = Path(__file__).with_name("multi_device.py")


def start(devices: int, *arguments: str) -> subprocess.Popen:
    environment = dict(
        os.environ,
        JAX_PLATFORMS="cpu",
        JAX_NUM_CPU_DEVICES=str(devices),
        PYTHONPATH=str(PROGRAM.parents[2]),
    )
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes: subprocess.Popen, timeout: float = 280) -> None:
    try:
        outputs = [process.communicate(timeout=patience(timeout))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]
        # XLA's warning when it replicates an array over all devices because it finds no way between
        # two shardings.
        assert "full rematerialization" not in output, output[-4000:]


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> str:
    """What one device gives."""
    path = tmp_path_factory.mktemp("one") / "expected.npz"
    one = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    found, _ = multi_device.train(one, multi_device.make_samples())
    found |= multi_device.train_adapter(one, multi_device.make_samples())
    found |= multi_device.train_critic(one, multi_device.make_samples())
    found |= multi_device.train_experts(one, multi_device.make_samples())
    found |= multi_device.train_families(one, multi_device.make_samples())
    found |= multi_device.score_pictures(one)
    assert np.abs(found["adapter['layers']['query']['lora_b']"]).max() > 1e-3
    start = multi_device.start_params()
    assert np.abs(found["['embed']"] - start["embed"]).max() > 1e-3
    np.savez(path, **found)
    return str(path)


@pytest.mark.slow
def test_eight_devices_equal_one(expected: str, tmp_path: Path) -> None:
    finish(start(8, "mesh", expected, str(tmp_path)))


@pytest.mark.slow
def test_two_hosts_equal_one(expected: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    folder = str(tmp_path / "model")
    finish(*(start(2, "host", expected, folder, str(i), port) for i in range(2)))


def test_a_mesh_that_does_not_fit_is_refused() -> None:
    devices = jax.devices()[:1] * 8
    for sizes, message in (
        ((3, 1, 1), "data=3 x fsdp=1 x tensor=1 does not fit 8 devices"),
        ((2, 2, 1), "does not fit 8 devices; make the product 8"),
        ((-1, 3, 1), "does not fit 8 devices"),
        ((-1, -1, 1), "only one axis can be -1"),
        ((0, 1, 1), r"config\.mesh\.data=0: must be at least 1"),
        ((1, 1, -2), r"config\.mesh\.tensor=-2"),
    ):
        with pytest.raises(InputError, match=message):
            make_mesh(*sizes, devices=devices)


def test_devices_that_the_engine_has_alone_are_named() -> None:
    config = default_config()
    config.engine.devices, config.mesh.fsdp = 4, 8
    devices: Any = [types.SimpleNamespace(id=number, process_index=0) for number in range(8)]
    message = r"fsdp=8 x tensor=1 does not fit 4 devices \(engine\.devices=4 of each host are not in the mesh\); make "
    with pytest.raises(InputError, match=message):
        learner_mesh(config, devices)


def test_only_devices_beside_those_of_an_engine_may_be_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_block(shape: tuple[int, ...], devices: list[jax.Device], **how: object) -> np.ndarray:
        raise AssertionError

    monkeypatch.setattr(mesh_utils, "create_device_mesh", no_block)
    devices = jax.devices()[:1]
    sizes = dict.fromkeys(AXES, 1)
    assert arrange_devices(devices, sizes, engine_devices=1).shape == (1, 1, 1)
    with pytest.raises(AssertionError):
        arrange_devices(devices, sizes, engine_devices=0)


def abstract_mesh(data: int, fsdp: int, tensor: int) -> jax.sharding.AbstractMesh:
    return jax.sharding.AbstractMesh((data, fsdp, tensor), AXES)


def test_published_shapes_split_as_planned() -> None:
    """7B over fsdp=4, tensor=4: every matrix is split 16 ways, 512 key/value columns and 28 x 128
    query columns too.
    """
    config = PUBLISHED["7b"]
    shapes = decoder.abstract_params(config)
    where, notes = shard_by_rules(abstract_mesh(2, 4, 4), decoder.logical_axes(config), shapes)
    assert notes == []
    pieces = jax.tree.map(
        lambda s, x: x.size // int(np.prod(s.shard_shape(x.shape))), where, shapes
    )
    assert pieces["embed"] == pieces["head"] == pieces["layers"]["key"]["kernel"] == 16
    assert {
        pieces["layers"][name]["kernel"] for name in ("query", "value", "out", "gate", "up", "down")
    } == {16}
    assert pieces["layers"]["mlp_norm"]["scale"] == 4
    spec = jax.tree.map(lambda s: tuple(s.spec), where)
    into, out_of = (
        (None, "fsdp", "tensor"),
        (None, "tensor", "fsdp"),
    )  # columns first, then rows: one sum a block
    layers = spec["layers"]
    assert {layers[name]["kernel"] for name in ("query", "key", "value", "gate", "up")} == {into}
    assert {layers[name]["kernel"] for name in ("out", "down")} == {out_of}
    assert {layers[name]["bias"] for name in ("query", "key", "value")} == {(None, "tensor")}
    assert spec["embed"] == spec["head"] == ("tensor", "fsdp")
    assert spec["final_norm"]["scale"] == ("fsdp",)
    assert tuple(gathered(where["embed"]).spec) == ("tensor", None)


def test_an_axis_that_does_not_divide_is_repeated_and_reported() -> None:
    axes = {"embed": ("vocab", "embed")}
    shapes = {"embed": jax.ShapeDtypeStruct((97, 8), np.float32)}
    where, notes = shard_by_rules(abstract_mesh(1, 2, 4), axes, shapes)
    assert where["embed"].spec == jax.sharding.PartitionSpec(None, "fsdp")
    assert notes == ["['embed']: axis vocab of 97 is repeated, not split over tensor=4"]


def test_rows_that_cannot_be_spread_are_refused() -> None:
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    assert local_rows(mesh, 3) == 3

    with pytest.raises(
        InputError, match=r"config\.batch\.rows=4: must be a multiple of .* = 6, such as 6"
    ):
        local_rows(abstract_mesh(3, 2, 1), 4)
