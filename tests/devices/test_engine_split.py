"""The devices that split an engine's weights: whether they can, and how few hold them."""

import math
from dataclasses import dataclass

import jax
import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.engine_split import check_engine, engine_split_size
from gigpo_jax.devices.memory import (
    GIB,
    check_memory,
    memory_estimate,
    peak,
)
from gigpo_jax.devices.mesh import AXES, learner_mesh
from gigpo_jax.devices.server_config import server_tensor
from gigpo_jax.models import decoder
from gigpo_jax.models.published import PUBLISHED


def test_a_mesh_that_cannot_hold_heads_or_slots_is_refused():
    config = default_config()
    one = jax.devices()[:1]
    for sizes, slots, message in (
        (
            (1, 1, 4),
            128,
            r"^config\.mesh\.tensor=4: .* 2 key/value heads .*; make mesh.tensor smaller$",
        ),
        (
            (2, 3, 1),
            128,
            r"^config\.engine\.slots=128: .* over 6 parts .* 1 in a part\); use a multiple, such as 132$",
        ),
        (
            (2, 3, 2),
            20,
            r"^config\.engine\.slots=20: .* over 6 parts .* 2 in a part\); use a multiple, such as 24$",
        ),
    ):
        mesh = jax.sharding.Mesh(np.array(one * math.prod(sizes)).reshape(sizes), AXES)
        config.engine.slots = slots
        with pytest.raises(InputError, match=message):
            check_engine(config, PUBLISHED["1.5b"], mesh, mesh.shape["tensor"])
        config.engine.slots = 24
        check_engine(config, PUBLISHED["7b"], mesh, mesh.shape["tensor"])
    config.engine.tensor = 3
    with pytest.raises(
        InputError, match=r"^config\.engine\.tensor=3: .* 4 key/value heads .*; use one of 2, 4$"
    ):
        check_engine(config, PUBLISHED["7b"], mesh, 3)
    config.engine.tensor, config.train.max_staleness = 0, 1
    with pytest.raises(
        InputError,
        match=r"^config\.train\.max_staleness=1: with mesh\.tensor=2 .* or mesh\.tensor=1, or ",
    ):
        check_engine(config, PUBLISHED["7b"], mesh, 2)
    for own, slots, message in (
        (3, 24, r"^config\.engine\.devices=3: must be a multiple of mesh\.tensor=2$"),
        (4, 23, r"^config\.engine\.slots=23: .* over 2 parts .* such as 24$"),
    ):
        config.engine.devices, config.engine.slots = own, slots
        with pytest.raises(InputError, match=message):
            check_engine(config, PUBLISHED["7b"], mesh, 2)
    config.engine.slots = 22  # a multiple of 2, and not of the learner's 6
    check_engine(config, PUBLISHED["7b"], mesh, 2)
    devices = len(jax.devices())
    config.engine.devices = devices
    with pytest.raises(
        InputError,
        match=rf"^config\.engine\.devices={devices}: a host has {devices} devices, and one at ",
    ):
        learner_mesh(config)


@dataclass(frozen=True)
class Device:
    """Of a host, as a mesh needs it."""

    id: int
    process_index: int
    platform: str = "tpu"


@pytest.mark.parametrize(
    ("hosts", "fit"), [((0, 0, 0, 0, 1, 1, 1, 1), (1, 2, 4)), ((0, 0, 1, 1, 1, 0, 0, 1), (1,))]
)
def test_the_engines_weights_are_split_over_devices_of_one_host(hosts, fit):
    config = default_config()
    config.mesh.fsdp, config.batch.rows = 8, 8
    config = resolve(config).unlock()
    mesh = jax.sharding.Mesh(
        np.array([Device(*each) for each in enumerate(hosts)]).reshape(1, 8, 1), AXES
    )
    for tensor in (1, 2, 4):
        config.engine.tensor = tensor
        if tensor in fit:
            check_engine(config, PUBLISHED["7b"], mesh, tensor)
        else:
            with pytest.raises(
                InputError,
                match=rf"^config\.engine\.tensor={tensor}: .* on one host; use one of 1$",
            ):
                check_engine(config, PUBLISHED["7b"], mesh, tensor)
    config.engine.tensor = 0
    limit = int(peak(config, memory_estimate(config, PUBLISHED["7b"], 8, 2, tensor=2))) + 1
    assert engine_split_size(config, PUBLISHED["7b"], mesh, limit) == (2 if 2 in fit else 1)


def test_the_engines_weights_are_split_over_as_few_devices_as_fit():
    config = default_config()
    # With 256 slots the engine needs more than an update.
    config.mesh.fsdp, config.batch.rows, config.engine.slots = 8, 8, 256
    config = resolve(config).unlock()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1] * 8).reshape(1, 8, 1), AXES)
    whole, halves = (memory_estimate(config, PUBLISHED["7b"], 8, tensor=n) for n in (1, 2))
    assert halves == whole | {"engine's weights": whole["engine's weights"] / 2}
    for estimate, devices in ((whole, 1), (halves, 2)):
        limit = int(peak(config, estimate)) + 1
        assert engine_split_size(config, PUBLISHED["7b"], mesh, limit) == devices
        check_memory(config, PUBLISHED["7b"], 8, tensor=devices, limit=limit)
    config.engine.tensor = 4
    assert engine_split_size(config, PUBLISHED["7b"], mesh, 2**40) == 4
    config.engine.tensor, config.train.max_staleness = 0, 1
    assert engine_split_size(config, PUBLISHED["7b"], mesh, limit) == 1


def test_a_servers_weights_are_split_over_as_few_devices_as_fit():
    """They are there once: 30B-A3B fits four chips of 32 GiB, each with one of four heads."""
    config = default_config()
    config.mesh.fsdp, config.model.param_dtype = 8, "bfloat16"
    config = resolve(config, trains=False)
    devices = [Device(number, 0) for number in range(4)]
    mesh = jax.sharding.Mesh(np.array(devices).reshape(4, 1, 1), AXES)
    shape = PUBLISHED["qwen3-30b-a3b"]
    cache_bytes = 48 * 4 * 128 * 2 * 2 * 128 * 2560 / 4
    for count in (1, 2, 4):
        needed = int(2 * decoder.param_count(shape) / count + cache_bytes) + 1
        assert server_tensor(config, shape, mesh, needed) == count
        if count < 4:
            assert server_tensor(config, shape, mesh, needed - 2) > count
    assert needed < 32 * GIB
    config.engine.tensor = 2
    assert server_tensor(config, shape, mesh, 2**40) == 2
