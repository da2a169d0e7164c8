"""What the compiler for GPUs makes of the programs; needs the extra preflight-gpu."""

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.models import decoder
from gigpo_jax.tools.preflight import report
from gigpo_jax.tools.preflight.engine_programs import compile_engine
from gigpo_jax.tools.preflight.shapes import run_arrays
from gigpo_jax.tools.preflight.targets import find_target, target_devices

pytest.importorskip("jax_plugins.xla_cuda13")
pytestmark = pytest.mark.preflight
SHAPE = decoder.DecoderConfig(2048, 512, 2048, 4, 8, 2, 64)  # copies of 1 MiB are reported


@pytest.mark.parametrize("apart", [True, False])
def test_the_engine_copies_no_weights_of_a_layer(apart: bool) -> None:
    """With an adapter the learner's own arrays are the engine's: they stay stacked."""
    flags = ["--config.model.path=Qwen2.5-1.5B-Instruct"]
    if not apart:
        flags += ["--config.model.param_dtype=bfloat16", "--config.model.lora.rank=8"]
    config = resolve(load_config("configs/alfworld.py:1.5b", flags))
    target = find_target("h200x1")
    mesh = make_mesh(**config.mesh, devices=target_devices(target))
    arrays = run_arrays(config, SHAPE, mesh)
    engine = compile_engine(config, SHAPE, arrays, 1, None, ())
    assert isinstance(engine.params["layers"], tuple) == apart
    array_names = report.name_arrays(arrays, engine.cache)
    for compiled in engine.programs:
        if compiled.name in ("prefill", "decode"):
            copies = report.measure_program(compiled, target.chip, array_names)["copies"]
            assert any("weights" in copy["of"] for copy in copies) != apart, compiled.name
