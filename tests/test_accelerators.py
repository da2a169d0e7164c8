"""What runs on GPUs and TPUs lowers for them, seen without one: most of what a first run there
would trip over.
"""

import dataclasses
import functools
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from gigpo_jax import policy
from gigpo_jax.config import default_config, resolve
from gigpo_jax.devices.exchange import global_batch
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.engines.jax import jax_engine, prepared_params, programs, slots
from gigpo_jax.engines.jax.placement import Placement
from gigpo_jax.learner import fitted_rows, full_rows
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.main import main
from gigpo_jax.models import decode_kernel, decoder, decoding
from gigpo_jax.models.attention import attention
from gigpo_jax.models.experts import apply_experts
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.tools.preflight.targets import believe_in_hopper
from tests.metrics import CLOCK, records
from tests.models.shapes import random_params

pytestmark = pytest.mark.slow

SHAPE = decoder.DecoderConfig(97, 32, 64, 2, 4, 2, 16)
SLOTS = 4
LENGTH = 32
KERNELS = {
    "cuda": "hopper",
    "tpu": "tpu",
}  # platform to lower for -> the kernels of attention there
FUSED = "__cudnn$fmhaSoftmax"
MASKED = "__cudnn$fmhaScaleBiasSoftmax"  # of GPUs before Hopper, and of trees


@pytest.fixture(params=KERNELS)
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program believes that it runs there; of cuDNN, which is asked for its version only, it
    sees a number.
    """
    monkeypatch.setattr(policy, "kernels_for", lambda device: KERNELS[request.param])
    believe_in_cudnn(monkeypatch)
    return request.param


def believe_in_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cudnn, "cuda_versions", types.SimpleNamespace(cudnn_get_version=lambda: 91000)
    )
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
    believe_in_hopper()


def lowered(function, platform: str, *args) -> str:
    return function.trace(*args).lower(lowering_platforms=(platform,)).as_text()


def check_kernels(text: str, platform: str, dtype: str, *, backward: bool) -> None:
    """cuDNN's attention of packed segments runs on GPUs in bfloat16 and nowhere else, and is told
    that it is causal.
    """
    fused = platform == "cuda" and dtype == "bfloat16"
    assert (f"@{FUSED}(" in text) == fused
    assert (f"@{FUSED}Backward(" in text) == (fused and backward)
    if fused:
        calls = [line for line in text.splitlines() if f"@{FUSED}" in line]
        assert all(r"mask_type\22: \22PADDING_CAUSAL" in line for line in calls)


def make_batch() -> StepBatch:
    rng = np.random.default_rng(0)
    draw = functools.partial(rng.integers, 0, SHAPE.vocab_size, dtype=np.int32)
    samples = [Sample(draw(5), draw(4), np.zeros(4, np.float32), 1.0) for _ in range(8)]
    return make_minibatches(samples, steps=8, row_length=LENGTH, rows=2, rng=rng)[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_learner(platform: str, dtype: str) -> None:
    config = default_config()
    config.model.compute_dtype = dtype
    config.batch.rows, config.batch.row_length = 2, LENGTH
    config.sampling.max_prompt_tokens = config.sampling.max_response_tokens = (
        5  # rows hold several: the banded kernel
    )
    config.rl.entropy_coef = 0.01
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    learner = Learner(
        resolve(config), Policy(SHAPE, decoder.init_params(SHAPE, jax.random.key(0)), None), mesh
    )  # type: ignore[arg-type]
    batch = global_batch(mesh, make_batch())
    scored = lowered(learner._programs.logprobs, platform, learner.state.params, batch)
    check_kernels(scored, platform, dtype, backward=False)
    batch = jax.tree.map(jnp.asarray, make_batch())
    batch = StepBatch(**{**vars(batch), "reference": batch.behaviour})
    check_kernels(
        lowered(learner._programs.update, platform, learner.state, batch),
        platform,
        dtype,
        backward=True,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_engine(platform: str, dtype: str) -> None:
    params = decoder.abstract_params(SHAPE, jnp.dtype(dtype))
    cache = jax.eval_shape(lambda: decoding.init_cache(SHAPE, SLOTS, LENGTH, jnp.dtype(dtype)))
    state = jax.eval_shape(lambda: slots.init_slots(SLOTS))
    prefill = functools.partial(decoding.prefill, SHAPE, kernels=KERNELS[platform])
    decode = functools.partial(decoding.decode, SHAPE, kernels=KERNELS[platform])
    prefill_prompts = jax.jit(
        functools.partial(slots.prefill_prompts, prefill), donate_argnums=(1, 2)
    )
    rows = jax.ShapeDtypeStruct((2, slots.SETTINGS + slots.STOP_IDS + LENGTH // 2), jnp.int32)
    check_kernels(
        lowered(prefill_prompts, platform, params, cache, state, slots.PromptBatch(rows)),
        platform,
        dtype,
        backward=False,
    )
    decode_tokens = jax.jit(
        functools.partial(slots.decode_tokens, decode, 4), donate_argnums=(1, 2)
    )
    control = jax.ShapeDtypeStruct((1 + SLOTS,), jnp.int32)
    text = lowered(decode_tokens, platform, params, cache, state, control)
    assert FUSED not in text
    assert ("decode_attention" in text) == (platform == "cuda" and dtype == "bfloat16")


def test_experts_are_one_operation_on_tpus_alone() -> None:
    """Elsewhere XLA would expand it to arrays of all tokens and all experts."""
    rows = jax.ShapeDtypeStruct((512, 16), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((512, 2), jnp.int32)
    gates = jax.ShapeDtypeStruct((512, 2), jnp.float32)
    into = jax.ShapeDtypeStruct((4, 16, 8), jnp.bfloat16)
    out_of = jax.ShapeDtypeStruct((4, 8, 16), jnp.bfloat16)
    for platform, kernels in KERNELS.items():
        apply = jax.jit(functools.partial(apply_experts, kernels=kernels))
        text = lowered(apply, platform, rows, ids, gates, into, into, out_of)
        assert ("chlo.ragged_dot" in text) == (platform == "tpu")

        def loss(
            x: jax.Array, ids: jax.Array, gates: jax.Array, *matrices: jax.Array, apply=apply
        ) -> jax.Array:
            return apply(x, ids, gates, *matrices).astype(jnp.float32).sum()

        gradient = jax.jit(jax.grad(loss, argnums=(0, 2, 3, 4, 5)))
        text = lowered(gradient, platform, rows, ids, gates, into, into, out_of)
        # Three products and the gradients of their rows; gradients of matrices are Pallas kernels.
        assert text.count('"chlo.ragged_dot"(') == (6 if platform == "tpu" else 0)
        # Two, because gate and up have one shape.
        assert text.count("@tpu_custom_call(") == (2 if platform == "tpu" else 0)


@pytest.mark.parametrize("kernels", ["hopper", "gpu", "tpu"])
def test_kept_attention_is_not_computed_again(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward kernels in a gradient: one, and another in the backward pass of
    `remat="full"`.
    """
    believe_in_cudnn(monkeypatch)
    shape = decoder.DecoderConfig(97, 32, 64, 2, 2, 1, 64)
    params = decoder.abstract_params(shape)
    tokens = jax.ShapeDtypeStruct((1, 128), jnp.int32)

    def forwards(remat: str) -> int:
        how = decoder.Execution(
            jnp.bfloat16, remat, attention=functools.partial(attention, kernels=kernels)
        )

        def loss(params: decoder.Params, tokens: jax.Array) -> jax.Array:
            return (
                decoder.hidden_states(shape, params, tokens, execution=how)
                .astype(jnp.float32)
                .sum()
            )

        text = lowered(
            jax.jit(jax.grad(loss)), "tpu" if kernels == "tpu" else "cuda", params, tokens
        )
        call = {
            "hopper": f"@{FUSED}(",
            "gpu": f"@{MASKED}(",
            "tpu": 'kernel_name = "splash_mha_fwd',
        }[kernels]
        return text.count(call)

    assert forwards("full") == 2
    assert forwards("attention") == 1


@pytest.mark.parametrize(
    ("kernels", "platform", "calls"),
    [
        ("hopper", "cuda", (f"@{MASKED}(", f"@{MASKED}Backward(")),
        ("gpu", "cuda", (f"@{MASKED}(", f"@{MASKED}Backward(")),
        ("tpu", "tpu", ("splash_mha_fwd", "splash_mha_dq", "splash_mha_dkv")),
    ],
)
def test_trees_have_the_kernel_of_the_device(
    kernels: str, platform: str, calls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    believe_in_cudnn(monkeypatch)
    query, key = (jax.ShapeDtypeStruct((2, 128, n, 64), jnp.bfloat16) for n in (4, 2))
    trees = jax.ShapeDtypeStruct((2, 2, 128), jnp.int32)

    def loss(query: jax.Array, key: jax.Array, trees: jax.Array) -> jax.Array:
        return attention(query, key, key, trees, kernels=kernels).astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    text = lowered(gradient, platform, query, key, trees)
    assert all(call in text for call in calls)


@pytest.mark.parametrize(("kernels", "call"), [("hopper", FUSED), ("gpu", MASKED)])
def test_what_cudnn_does_not_take_goes_to_the_plain_kernel(
    kernels: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    believe_in_cudnn(monkeypatch)

    def text(length: int, width: int, dtype: str) -> str:
        q, kv = (jax.ShapeDtypeStruct((2, length, n, width), jnp.dtype(dtype)) for n in (4, 2))
        segments = jax.ShapeDtypeStruct((2, length), jnp.int32)
        return lowered(
            jax.jit(functools.partial(attention, kernels=kernels)), "cuda", q, kv, kv, segments
        )

    assert f"@{call}(" in text(16, 8, "bfloat16")
    for odd in (
        (15, 8, "bfloat16"),
        (16, 12, "bfloat16"),
        (16, 256, "bfloat16"),
        (16, 8, "float32"),
    ):
        assert "fmha" not in text(*odd), odd


def take_gpu_defaults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Engines and rows are those of a GPU, computed here; returns the ways that are taken."""
    taken: list[str] = []
    gpu = types.SimpleNamespace(platform="gpu", compute_capability="9.0")
    kernel = decode_kernel.decode_attention
    fill = full_rows.fill_rows
    split = prepared_params.split_layers

    def attend(query: jax.Array, *arrays: Any) -> jax.Array:
        taken.append("chunks" if query.shape[1] > 1 else "tokens")
        return kernel(query, *arrays, interpret=True)

    def fill_rows(*args: Any) -> list[list[int]]:
        taken.append("full rows")
        return fill(*args)

    def split_layers(*args: Any) -> Any:
        taken.append("layers apart")
        return split(*args)

    monkeypatch.setattr(jax_engine, "place_engine", lambda *_: Placement(gpu))
    monkeypatch.setattr(prepared_params, "split_layers", split_layers)
    monkeypatch.setattr(decode_kernel, "decode_attention", attend)
    # Interpreted, it takes float32 too, in which the numbers can be compared.
    monkeypatch.setattr(decode_kernel, "fits", lambda *_: True)
    fit = fitted_rows.RowFit(1, 8 * 512, fills=True)
    monkeypatch.setattr(fitted_rows, "make_fit", lambda *_: fit)
    monkeypatch.setattr(fitted_rows, "fill_rows", fill_rows)
    return taken


def test_an_iteration_has_the_numbers_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers apart, the kernel of the cache and rows filled by subset sums change no more than
    rounding does.
    """
    prepare = programs.Programs.prepare_params

    def prepare_params(engine: programs.Programs, params: decoder.Params) -> decoder.Params:
        # The engine's layers are its own if they are of another type than the learner's.
        return prepare(engine, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params))

    monkeypatch.setattr(programs.Programs, "prepare_params", prepare_params)
    words = load_tokenizer("models/alfworld_tiny")
    shape = dataclasses.replace(SHAPE, vocab_size=words.vocab_size)
    params = jax.tree.map(lambda leaf: 0.5 * leaf, random_params(shape))
    save_hf(tmp_path / "model", shape, params, tokenizer=words)
    flags = ["--mode=train", "--config=quickstart", f"--config.model.path={tmp_path / 'model'}"]
    flags += ["--config.train.iterations=1", "--config.train.groups=2", "--config.eval.panel="]
    flags += ["--config.train.group_size=2", "--config.env.max_steps=4", "--config.engine.slots=4"]
    flags += ["--config.train.minibatch=8", "--config.batch.fit_rows=True"]
    flags += ["--config.engine.prefill_chunk=32", "--config.engine.prefill_buckets=()"]
    flags += ["--config.rl.entropy_coef=0.1"]
    assert main([*flags, f"--workdir={tmp_path / 'cpu'}"]) == 0
    taken = take_gpu_defaults(monkeypatch)
    assert main([*flags, f"--workdir={tmp_path / 'gpu'}"]) == 0
    assert {*taken} == {"layers apart", "chunks", "tokens", "full rows"}
    (expected,), (found,) = (
        [
            record
            for record in records(tmp_path / name, without=(*CLOCK, "batch/padding_share"))
            if "policy/loss" in record
        ]
        for name in ("cpu", "gpu")
    )
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)
