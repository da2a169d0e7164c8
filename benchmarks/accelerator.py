"""What benchmarks/gpu.py measures of one accelerator, each part in a process of its own; random weights."""

import argparse
import asyncio
import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.batching import Sample, make_minibatches, packing_stats
from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.config.packaged import located
from gigpo_jax.models import attention, qwen2
from gigpo_jax.models.tokenizer import load_tokenizer
from gigpo_jax.models.weights import save_hf
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.update import init_state, make_optimizer, make_update
from gigpo_jax.run.hosts import Hosts
from gigpo_jax.run.memory import memory_plan
from gigpo_jax.run.memory import peak as peak_memory
from gigpo_jax.train import Trainer

Result = dict[str, float | int | str | None]

TINY = qwen2.Qwen2Config(512, 64, 128, 2, 4, 2, 16)
TOKENIZER = "models/alfworld_tiny"  # knows the words of the games
# device kind -> (dense bf16 operations/s, bytes/s), from the vendors' data sheets
DEVICES = {
    "NVIDIA H200": (989e12, 4.8e12),
    "NVIDIA H100 80GB HBM3": (989e12, 3.35e12),
    "NVIDIA A100-SXM4-80GB": (312e12, 2.04e12),
    "NVIDIA A100-SXM4-40GB": (312e12, 1.555e12),
    "TPU v4": (275e12, 1.23e12),
    "TPU v5 lite": (197e12, 0.82e12),
    "TPU v5": (459e12, 2.77e12),
    "TPU v5p": (459e12, 2.77e12),
    "TPU v6 lite": (918e12, 1.64e12),
}


def timed(call: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call that returns arrays, after one that is not counted."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        before = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - before)
    return statistics.median(seconds)


def ceilings(device: jax.Device, peak_tflops: float | None, bandwidth_gb: float | None) -> tuple[float, float, str]:
    """Operations/s and bytes/s of a device, and where they are from: flags, the data sheet, or a measurement."""
    if peak_tflops and bandwidth_gb:
        return peak_tflops * 1e12, bandwidth_gb * 1e9, "flags"
    if device.device_kind in DEVICES:
        return *DEVICES[device.device_kind], "data sheet"
    print(
        f"device kind {device.device_kind!r} is not in DEVICES: what a product and a copy reach is measured instead, "
        "and shares of that come out high; give the data sheet's figures by --peak-tflops (dense bf16) and "
        "--bandwidth-gb (GB/s)",
        file=sys.stderr,
    )
    return *measured_ceilings(device), "measured"


def measured_ceilings(device: jax.Device) -> tuple[float, float]:
    """What a matrix product and a copy reach; on an accelerator large ones, or their launch would be measured."""
    small = device.platform == "cpu"
    size, numbers = (1024, 16 << 20) if small else (8192, 512 << 20)
    a = jnp.ones((size, size), jnp.float32 if small else jnp.bfloat16)
    product, plus = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1)
    big = jnp.ones(numbers, jnp.float32)
    return 2 * size**3 / timed(lambda: product(a), 5), 2 * big.nbytes / timed(lambda: plus(big), 5)


def matrix_weights(config: qwen2.Qwen2Config) -> int:
    """Weights of the layers' matrices, that is without embedding, norms and biases."""
    layers = qwen2.abstract_params(config)["layers"]
    return sum(leaf["kernel"].size for leaf in layers.values() if "kernel" in leaf)


def random_params(config: qwen2.Qwen2Config, dtype: jnp.dtype) -> qwen2.Params:
    """Weights drawn on the device."""
    return jax.jit(functools.partial(qwen2.init, config, dtype=dtype))(jax.random.key(0))


def household_samples(config: qwen2.Qwen2Config, tokens: int, row_length: int) -> list[Sample]:
    """Steps with the lengths of published ALFWorld training (scaled down for short rows), about `tokens` in all."""
    rng, scale, samples, total = np.random.default_rng(0), min(1.0, row_length / 4096), [], 0
    while total < tokens:
        prompt = int(np.clip(rng.normal(620, 170), 250, 2048) * scale) + 1
        response = int(np.clip(rng.lognormal(4.6, 0.5), 20, 512) * scale) + 1
        ids = rng.integers(0, config.vocab_size, prompt + response).astype(np.int32)
        old = np.full(response, -np.log(config.vocab_size), np.float32)
        samples.append(Sample(ids[:prompt], ids[prompt:], old, float(rng.normal())))
        total += prompt + response - 1
    return samples


def compute_dtype(args: argparse.Namespace) -> jnp.dtype:
    """bfloat16; float32 on a CPU."""
    return jnp.dtype("float32" if args.platform == "cpu" else "bfloat16")


def train(config: qwen2.Qwen2Config, args: argparse.Namespace, peak: float, bandwidth: float) -> Result:
    """One update with float32 masters and bf16 compute."""
    del bandwidth
    attend = functools.partial(attention.attention, kernels=attention.kernels_for(jax.devices()[0]))
    execution = qwen2.Execution(compute_dtype(args), args.remat, attention=attend)

    def forward(
        params: qwen2.Params, _: Any, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array, images: Any
    ) -> tuple[jax.Array, jax.Array]:
        hidden = qwen2.hidden_states(config, params, tokens, positions, segment_ids, execution)
        return hidden, qwen2.output_embedding(config, params)

    optimizer = make_optimizer(lr=1e-6)
    update = make_update(forward, optimizer, LossSettings(clip_low=0.2, clip_high=0.2), chunk=args.chunk)
    state = init_state(random_params(config, jnp.float32), optimizer)
    samples = household_samples(config, args.microbatches * args.rows * args.row_length, args.row_length)
    (batch,) = make_minibatches(
        samples, steps=len(samples), row_length=args.row_length, rows=args.rows, rng=np.random.default_rng(0)
    )
    stats = packing_stats([batch])
    batch = jax.device_put(batch)

    def step() -> jax.Array:
        nonlocal state
        state, metrics = update(state, batch)
        return metrics["policy/loss"]

    seconds = timed(step, args.repeats)
    if args.trace:
        trace(step, args.trace)
    lengths = np.array([len(s.prompt_tokens) + len(s.response_tokens) - 1 for s in samples], float)
    responses = sum(len(s.response_tokens) for s in samples)
    width = config.num_heads * config.head_dim
    operations = 6 * matrix_weights(config) * lengths.sum() + 6 * config.vocab_size * config.hidden_size * responses
    # A token sees half of its segment on average; scores and mixing, forward and twice that backward.
    operations += 6 * 2 * config.num_layers * width * (lengths**2).sum() / 2
    return {
        "tokens_per_s": round(stats["batch/tokens"] / seconds),
        "seconds": round(seconds, 4),
        "mfu": round(operations / seconds / peak, 4),
        "padding_share": round(stats["batch/padding_share"], 4),
        "remat": args.remat,
        "row_length": args.row_length,
        "rows": args.rows,
        "forecast_memory_gb": round(forecast(config, args), 2),
    }


def forecast(config: qwen2.Qwen2Config, args: argparse.Namespace) -> float:
    """GB that the memory plan gives to such an update."""
    words = [
        f"--config.batch.rows={args.rows}",
        f"--config.batch.row_length={args.row_length}",
        "--config.rl.kl_coef=0",
    ]
    words += [f"--config.model.remat={args.remat}", f"--config.batch.logprob_chunk={args.chunk}"]
    plan = memory_plan(load_config("alfworld:1.5b", words), config, 1)
    return sum(size for name, size in plan.items() if name not in ("KV cache", "engine's weights")) / 1e9


def trace(call: Callable[[], object], file: Path) -> None:
    """Writes the device's part of a profile of one call, for https://ui.perfetto.dev."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            jax.block_until_ready(call())
        (found,) = Path(folder).rglob("*.trace.json.gz")
        shutil.copy(found, file)


def decode(config: qwen2.Qwen2Config, args: argparse.Namespace, peak: float, bandwidth: float) -> Result:
    """Greedy decoding of `slots` sequences from a context of `context` tokens, many steps a call."""
    del peak
    dtype = compute_dtype(args)
    params = random_params(config, dtype)
    longest = args.context + args.steps
    cache = qwen2.init_cache(config, args.slots, longest, dtype)

    @functools.partial(jax.jit, donate_argnums=1)
    def run(params: qwen2.Params, cache: qwen2.KVCache) -> tuple[jax.Array, qwen2.KVCache]:
        def one(carry: tuple, i: jax.Array) -> tuple:
            tokens, cache = carry
            scores, cache = qwen2.decode(config, params, cache, tokens, jnp.full(args.slots, args.context) + i)
            return (jnp.argmax(scores, -1).astype(jnp.int32), cache), None

        (tokens, cache), _ = jax.lax.scan(one, (jnp.zeros(args.slots, jnp.int32), cache), jnp.arange(args.steps))
        return tokens, cache

    def step() -> jax.Array:
        nonlocal cache
        tokens, cache = run(params, cache)
        return tokens

    seconds = timed(step, args.repeats) / args.steps
    size = jnp.dtype(dtype).itemsize
    head = config.vocab_size * config.hidden_size
    kept = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    read = size * (matrix_weights(config) + head + kept * args.slots * (args.context + args.steps / 2))
    return {
        "tokens_per_s": round(args.slots / seconds),
        "ms_a_step": round(1e3 * seconds, 3),
        "share_of_bound": round(read / bandwidth / seconds, 4),
        "slots": args.slots,
        "context": args.context,
        "forecast_memory_gb": round(size * (head + matrix_weights(config) + kept * args.slots * longest) / 1e9, 2),
    }


def prefill(config: qwen2.Qwen2Config, args: argparse.Namespace, peak: float, bandwidth: float) -> Result:
    """Prompts of `context` tokens into the cache, 16 (tiny: 4) at a time."""
    del bandwidth
    dtype, rows = compute_dtype(args), min(16, args.slots)
    params = random_params(config, dtype)
    cache = qwen2.init_cache(config, rows, args.context, dtype)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, config.vocab_size, (rows, args.context)), jnp.int32)
    lengths, slots = jnp.full(rows, args.context, jnp.int32), jnp.arange(rows)
    kernels = attention.kernels_for(jax.devices()[0])
    run = jax.jit(functools.partial(qwen2.prefill, config, kernels=kernels), donate_argnums=1)

    def step() -> jax.Array:
        nonlocal cache
        scores, cache = run(params, cache, tokens, lengths, slots)
        return scores

    seconds = timed(step, args.repeats)
    width, count = config.num_heads * config.head_dim, rows * args.context
    operations = 2 * matrix_weights(config) * count + 2 * config.vocab_size * config.hidden_size * rows
    operations += 2 * config.num_layers * width * count * args.context
    return {"tokens_per_s": round(count / seconds), "mfu": round(operations / seconds / peak, 4), "rows": rows}


def attention_kernels(config: qwen2.Qwen2Config, args: argparse.Namespace, peak: float, bandwidth: float) -> Result:
    """One layer's attention: what is chosen for this device, against jax's own kernels; ms a call.

    `train`: forward and backward of a packed row of eight segments. `decode`: one token of every slot. A kernel that
    does not take these arrays is null.
    """
    del peak, bandwidth
    dtype, rng = compute_dtype(args), np.random.default_rng(0)
    heads, groups, length, width = config.num_heads, config.num_kv_heads, args.row_length, config.head_dim

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), dtype)

    row = draw(1, length, heads, width), draw(1, length, groups, width), draw(1, length, groups, width)
    segments = jnp.arange(length)[None] // (length // 8) + 1
    same = (segments[:, :, None] == segments[:, None, :])[:, None]
    how = {"max_segment": length // 8, "kernels": attention.kernels_for(jax.devices()[0])}
    chosen = functools.partial(attention.attention, segment_ids=segments, **how)
    cache = draw(args.slots, groups, args.context, width), draw(args.slots, groups, args.context, width)
    token, last = draw(args.slots, heads, width), jnp.full(args.slots, args.context - 1)
    flat = tuple(jnp.swapaxes(x, 1, 2) for x in cache)  # [S, C, G, K]
    kernels = {
        "train": {"chosen": functools.partial(gradients(chosen), *row)},
        "decode": {
            "chosen": functools.partial(jax.jit(attention.cached_attention), token, *(x[None] for x in cache), 0, last)
        },
    }
    for name in ("xla", "cudnn"):
        dot = functools.partial(jax.nn.dot_product_attention, implementation=name)
        packed = functools.partial(dot, mask=same, is_causal=True)
        kernels["train"][name] = functools.partial(gradients(packed), *row)
        one = jax.jit(functools.partial(dot, key_value_seq_lengths=last + 1))
        kernels["decode"][name] = functools.partial(one, token[:, None], *flat)
    return {
        f"{kind}_{name}_ms": milliseconds(call, args.repeats)
        for kind, calls in kernels.items()
        for name, call in calls.items()
    }


def gradients(kernel: Callable[..., jax.Array]) -> Callable[..., object]:
    """Forward and backward pass of an attention kernel."""
    return jax.jit(jax.grad(lambda *row: kernel(*row).astype(jnp.float32).sum(), argnums=(0, 1, 2)))


def milliseconds(call: Callable[[], object], repeats: int) -> float | None:
    """The time of a call; None, and a line that says why, if the device has no such kernel."""
    try:
        return round(1e3 * timed(call, repeats), 4)
    except Exception as err:  # jax and its backends raise many types
        print(f"not measured: {type(err).__name__}: {str(err).splitlines()[0][:200]}", file=sys.stderr)
        return None


def iteration(config: qwen2.Qwen2Config, args: argparse.Namespace, peak: float, bandwidth: float) -> Result:
    """One iteration of configs/alfworld.py on generated games, without its compilation.

    The published sizes: 16 tasks x 8 episodes of 50 steps. A random policy never ends a response nor an episode, so
    responses have `response` tokens, about the published mean, and all episodes have 50 steps.
    """
    del peak, bandwidth
    tiny, tokenizer = args.shape == "tiny", load_tokenizer(located(TOKENIZER))
    if tiny:
        config = replace(config, vocab_size=tokenizer.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GIGPO_JAX_CACHE"] = f"{folder}/cache"
        save_hf(f"{folder}/model", config, random_params(config, compute_dtype(args)), tokenizer=tokenizer)
        words = [f"--config.model.path={folder}/model", f"--config.sampling.max_response_tokens={args.response}"]
        words += [f"--config.env.generate.{key}" for key in ("size=full", "seed=0", "splits.train=16")]
        words += ["--config.eval.every=0", "--config.train.save_rollouts=0", f"--config.model.remat={args.remat}"]
        if tiny:
            words += ["--config.train.groups=2", "--config.train.group_size=2", "--config.env.max_steps=2"]
            words += ["--config.train.minibatch=8", "--config.batch.rows=1", "--config.env.workers=1"]
            words += ["--config.engine.slots=4", "--config.model.compute_dtype=float32"]
            words += ["--config.engine.dtype=float32"]
        settings = resolve(load_config("alfworld:1.5b", words))
        with Trainer(settings, Path(folder) / "run", Hosts()) as trainer:
            metrics = asyncio.run(one_iteration(trainer))
    seconds = metrics["time/iteration"] - metrics.get("time/compile", 0.0)
    plan = memory_plan(settings, config, 1)
    return {
        "seconds": round(seconds, 2),
        "rollout_s": round(metrics["time/rollout"], 2),
        "update_with_compilation_s": round(metrics["time/update"], 2),
        "compile_s": round(metrics.get("time/compile", 0.0), 2),
        "steps": round(metrics["rollout/steps"]),
        "generated_tokens": round(metrics["rollout/generated_tokens"]),
        "trained_tokens": round(metrics["batch/tokens"]),
        "prompt_tokens_mean": round(metrics["prompt/length_mean"], 1),
        "response_tokens": args.response,
        "forecast_memory_gb": round(peak_memory(settings, plan) / 1e9, 2),
    }


async def one_iteration(trainer: Trainer) -> dict[str, float]:
    """Its metrics and times."""
    trainer.timers.take()  # those of the start
    with trainer.timers.time("iteration"):
        await trainer.update(await trainer.roll_out(0, trainer.worker))
    return (trainer.pending or {}) | trainer.timers.take()


PARTS: dict[str, Callable[[qwen2.Qwen2Config, argparse.Namespace, float, float], Result]] = {
    "train": train,
    "decode": decode,
    "prefill": prefill,
    "attention": attention_kernels,
    "iteration": iteration,
}


def measured(part: str, args: argparse.Namespace) -> tuple[dict[str, object], Result]:
    """What the device is, and the result of a part with the peak of its memory."""
    if args.platform:
        jax.config.update("jax_platforms", args.platform)
    device = jax.devices()[0]
    args.platform = device.platform
    config = TINY if args.shape == "tiny" else qwen2.PUBLISHED[args.shape]
    peak, bandwidth, source = ceilings(device, args.peak_tflops, args.bandwidth_gb)
    about: dict[str, object] = {
        "device": device.device_kind,
        "shape": args.shape,
        "parameters": qwen2.param_count(config),
        "peak_tflops": round(peak / 1e12, 3),
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
        "ceilings": source,
        "jax": jax.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
    result = PARTS[part](config, args, peak, bandwidth)
    memory = device.memory_stats() or {}
    return about, result | {"peak_memory_gb": round(memory.get("peak_bytes_in_use", 0) / 1e9, 2)}
