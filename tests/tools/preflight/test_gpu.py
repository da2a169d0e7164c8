"""What the compiler for GPUs makes of the programs; needs the extra preflight-gpu."""

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.models import decoder
from gigpo_jax.tools.preflight.engine_programs import compile_engine
from gigpo_jax.tools.preflight.shapes import run_arrays
from gigpo_jax.tools.preflight.targets import find_target, target_devices

pytest.importorskip("jax_plugins.xla_cuda13")
pytestmark = pytest.mark.preflight
SHAPE = decoder.DecoderConfig(2048, 512, 2048, 4, 8, 2, 64)


@pytest.mark.parametrize("apart", [True, False])
def test_layers_are_apart_where_the_engine_has_its_own(apart: bool) -> None:
    """With an adapter the learner's own arrays are the engine's: they stay stacked."""
    flags = ["--config.model.path=Qwen2.5-1.5B-Instruct"]
    if not apart:
        flags += ["--config.model.param_dtype=bfloat16", "--config.model.lora.rank=8"]
    config = resolve(load_config("configs/alfworld.py:1.5b", flags))
    mesh = make_mesh(**config.mesh, devices=target_devices(find_target("h200x1")))
    arrays = run_arrays(config, SHAPE, mesh)
    engine = compile_engine(config, SHAPE, arrays, 1, None, ())
    assert isinstance(engine.params["layers"], tuple) == apart
    texts = {compiled.name: compiled.program.as_text() for compiled in engine.programs}
    for name in ("prefill", "decode"):
        # The kernels of gate and up, a layer's part of the stack.
        assert ("bf16[1,512,2048]" in texts[name]) != apart, name
