"""What TPU compilers make of the programs; needs libtpu (make test-preflight)."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import ROWS, make_mesh
from gigpo_jax.devices.per_device import experts_on_each_device
from gigpo_jax.main import main
from gigpo_jax.models import decoder
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.experts import apply_experts
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.tools.preflight import report
from gigpo_jax.tools.preflight.compiled import compile_program
from gigpo_jax.tools.preflight.cost import count_cost
from gigpo_jax.tools.preflight.engine_programs import compile_engine
from gigpo_jax.tools.preflight.hlo import Program
from gigpo_jax.tools.preflight.shapes import run_arrays
from gigpo_jax.tools.preflight.targets import find_target, target_devices

pytestmark = pytest.mark.preflight
SHAPE = decoder.DecoderConfig(2048, 256, 512, 32, 4, 2, 128)
TOKENS = 1024  # of a row


def preflight(folder: Path, target: str, *flags: str) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config_json(SHAPE, "float32")))
    flags = (f"--config.model.path={folder}", f"--out={folder / 'found.json'}", *flags)
    sizes = (
        "--config.batch.rows=8",
        f"--config.batch.row_length={TOKENS}",
        "--config.engine.slots=16",
    )
    lengths = (
        "--config.sampling.max_prompt_tokens=768",
        "--config.sampling.max_response_tokens=256",
    )
    assert (
        main(
            [
                "--config=configs/alfworld.py:1.5b",
                "--mode=preflight",
                f"--target={target}",
                *sizes,
                *lengths,
                *flags,
            ]
        )
        == 0
    )
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("name", ["v5e-1", "v5p-8", "v6e-1"])
def test_the_memory_of_a_chip_is_the_limit_of_its_compiler(name: str) -> None:
    target = find_target(name)
    sharding = SingleDeviceSharding(target_devices(target)[0])
    array = jax.ShapeDtypeStruct((200, 2**28), jnp.float32, sharding=sharding)
    lowered = jax.jit(lambda x: 2 * x).lower(array)
    # Both have two decimals of GiB.
    limit = f"{(target.chip.memory + 1) / 2**30:.2f}"
    with pytest.raises(InputError, match=rf"\(400.00G\) exceeds available HBM \({limit}G\)"):
        compile_program("double", lowered)


@pytest.mark.parametrize("share", [False, True])
def test_one_chip_holds_no_scores(share: bool, tmp_path: Path) -> None:
    flags = ("--config.engine.name=vllm", f"--config.batch.share_prefixes={share}")
    found = preflight(tmp_path, "v6e-1", *flags)
    scores = 8 * SHAPE.num_heads * TOKENS * TOKENS * 4
    assert found["programs"]["score"]["temporaries"] < scores


@pytest.mark.parametrize(
    ("head_dim", "chunk", "experts"),
    [
        (64, 0, None),
        (64, 32, None),
        (128, 0, None),
        (128, 32, None),
        (128, 32, ExpertConfig(16, 8, 128)),
    ],
)
def test_the_engine_copies_no_cache(
    head_dim: int, chunk: int, experts: ExpertConfig | None
) -> None:
    """Experts of tokens are kept beside the cache, without padding."""
    shape = dataclasses.replace(SHAPE, num_layers=2, head_dim=head_dim)
    flags = ["--config.model.path=Qwen2.5-1.5B-Instruct", f"--config.engine.prefill_chunk={chunk}"]
    if experts is not None:
        shape = dataclasses.replace(shape, model_type="qwen3_moe", experts=experts)
        flags.append("--config.model.replay_routes=True")
    config = resolve(load_config("configs/alfworld.py:1.5b", flags))
    target = find_target("v6e-1")
    mesh = make_mesh(**config.mesh, devices=target_devices(target))
    arrays = run_arrays(config, shape, mesh)
    engine = compile_engine(config, shape, arrays, 1, None, ())
    array_names = report.name_arrays(arrays, engine.cache)
    for compiled in engine.programs:
        measured = report.measure_program(compiled, target.chip, array_names)
        copies = [copy for copy in measured["copies"] if copy["of"] == "KV cache"]
        assert not copies, compiled.name
        if compiled.name == "decode":
            cache_bytes = report.device_bytes(engine.cache)
            assert measured["temporaries"] < 0.05 * cache_bytes
            # A register has 128 lanes, so a head of 64 numbers takes twice its size.
            stored_bytes = cache_bytes * (128 // head_dim)
            assert stored_bytes <= measured["aliased"] < 1.01 * stored_bytes


def test_chips_that_split_heads_send_no_cache() -> None:
    """Each has one of four heads; what they send for a token does not grow with the cache."""
    shape = dataclasses.replace(SHAPE, num_layers=4, num_heads=8, num_kv_heads=4)
    flags = ["--config.model.path=Qwen2.5-1.5B-Instruct", "--config.engine.slots=128"]
    config = resolve(load_config("configs/alfworld.py:1.5b", [*flags, "--config.mesh.tensor=4"]))
    target = find_target("v6e-4")
    mesh = make_mesh(**config.mesh, devices=target_devices(target))
    arrays = run_arrays(config, shape, mesh)
    engine = compile_engine(config, shape, arrays, 4, None, ())
    array_names = report.name_arrays(arrays, engine.cache)
    for compiled in engine.programs:
        measured = report.measure_program(compiled, target.chip, array_names)
        assert not [copy for copy in measured["copies"] if copy["of"] == "KV cache"], compiled.name
        cache_bytes = report.device_bytes(engine.cache)
        assert sum(measured["collectives"].values()) < 0.2 * cache_bytes
        # The one head of a chip is not padded to two.
        if compiled.name != "hand-over":
            assert cache_bytes <= measured["aliased"] < 1.01 * cache_bytes


def test_eight_chips_share_the_slots_and_send_nothing_while_decoding(tmp_path: Path) -> None:
    found = preflight(tmp_path, "v5e-8", "--config.mesh.fsdp=8")
    # libtpu's topology has two hosts of four chips, and each host spreads 16 slots over its own.
    cache = (
        2 * SHAPE.num_layers * 4 * SHAPE.num_kv_heads * 1024 * SHAPE.head_dim * 2
    )  # bytes of four slots
    assert found["resident"]["KV cache"] == pytest.approx(cache, rel=0.01)
    assert found["programs"]["decode"]["collectives"] == {}
    assert found["programs"]["update"]["collectives"]["all-gather"] > 0
    assert found["programs"]["decode"]["temporaries"] < 0.05 * cache


def test_devices_multiply_the_rows_of_their_own_experts() -> None:
    """With all gradients, which are kernels of experts too."""
    mesh = make_mesh(data=1, fsdp=2, tensor=2, devices=target_devices(find_target("v6e-4")))
    experts = ExpertConfig(16, 8, 128)
    width, tokens = 256, 1024  # of a row
    apply = experts_on_each_device(mesh, functools.partial(apply_experts, kernels="tpu"), experts)

    def array(axis: Any, *sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, P(axis)))

    def loss(x, gates, gate, up, down, ids):
        return jnp.square(apply(x, ids, gates, gate, up, down).astype(jnp.float32)).mean()

    into = array("tensor", experts.count, width, experts.width)
    out_of = array("tensor", experts.count, experts.width, width)
    x = array(ROWS, 2, tokens, width)
    gates = array(ROWS, 2, tokens, 8, dtype=jnp.float32)
    ids = array(ROWS, 2, tokens, 8, dtype=jnp.int32)
    gradient = jax.jit(jax.grad(loss, argnums=range(5)))
    text = gradient.lower(x, gates, into, into, out_of, ids).compile().as_text()
    product = 2 * tokens * 8 * width * experts.width
    counted = count_cost(Program(text, experts.count), ()).operations
    # Three products forward and six backward, of the pairs of half of the experts.
    assert counted == pytest.approx(9 * product / 2, rel=0.01)
    assert count_cost(Program(text), ()).operations == pytest.approx(9 * product, rel=0.01)
