"""What benchmarks/gpu.py measures of one accelerator, each part in a process of its own; random
weights.
"""

import argparse
import asyncio
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from device_engine import measure_chunks, measure_decode, measure_prefill
from device_timing import (
    Result,
    compute_dtype,
    matrix_weights,
    random_params,
    time_call,
    write_trace,
)

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.packaged import locate_file
from gigpo_jax.devices.memory import memory_estimate
from gigpo_jax.devices.memory import peak as peak_memory
from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models import attention, decoder
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.published import PUBLISHED
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.modes.train import Trainer
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.rl.update import make_update
from gigpo_jax.run.hosts import Hosts

TINY = decoder.DecoderConfig(512, 64, 128, 2, 4, 2, 16)
TOKENIZER = "models/alfworld_tiny"  # knows the words of the games
TINY_SETTINGS = (
    "train.groups=2",
    "train.group_size=2",
    "train.minibatch=8",
    "batch.rows=1",
    "env.workers=1",
    "engine.slots=4",
    "engine.dtype=float32",
    "model.compute_dtype=float32",
)
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


def find_ceilings(
    device: jax.Device, peak_tflops: float | None, bandwidth_gb: float | None
) -> tuple[float, float, str]:
    """Operations/s and bytes/s of a device, and their source: flags, data sheet or measured."""
    if peak_tflops and bandwidth_gb:
        return peak_tflops * 1e12, bandwidth_gb * 1e9, "flags"
    if device.device_kind in DEVICES:
        return *DEVICES[device.device_kind], "data sheet"
    print(
        f"device kind {device.device_kind!r} is not in DEVICES: a product and a copy are measured "
        "instead, and shares of that come out high; give the data sheet's figures by "
        "--peak-tflops (dense bf16) and --bandwidth-gb (GB/s)",
        file=sys.stderr,
    )
    return *measure_ceilings(device), "measured"


def measure_ceilings(device: jax.Device) -> tuple[float, float]:
    """Operations/s of a matrix product, and bytes/s of a copy."""
    # On an accelerator large ones, or their launch would be measured.
    if device.platform == "cpu":
        matrix = jnp.ones((1024, 1024), jnp.float32)
        vector = jnp.ones(16 << 20, jnp.float32)
    else:
        matrix = jnp.ones((8192, 8192), jnp.bfloat16)
        vector = jnp.ones(512 << 20, jnp.float32)
    multiply = jax.jit(lambda x: x @ x)
    increment = jax.jit(lambda x: x + 1)
    operations = 2 * len(matrix) ** 3 / time_call(lambda: multiply(matrix), 5)
    return operations, 2 * vector.nbytes / time_call(lambda: increment(vector), 5)


def household_samples(config: decoder.DecoderConfig, tokens: int, row_length: int) -> list[Sample]:
    """Steps with the lengths of published ALFWorld training, which fill 95% of `tokens` tokens.

    Rows of real minibatches have 5% of padding too. The lengths are scaled down for short rows.
    """
    rng = np.random.default_rng(0)
    scale = min(1.0, row_length / 4096)
    samples = []
    total = 0
    while total < 0.95 * tokens:
        prompt = int(np.clip(rng.normal(620, 170), 250, 2048) * scale) + 1
        response = int(np.clip(rng.lognormal(4.6, 0.5), 20, 512) * scale) + 1
        ids = rng.integers(0, config.vocab_size, prompt + response).astype(np.int32)
        old = np.full(response, -np.log(config.vocab_size), np.float32)
        samples.append(Sample(ids[:prompt], ids[prompt:], old, float(rng.normal())))
        total += prompt + response - 1
    return samples


def count_operations(config: decoder.DecoderConfig, samples: list[Sample]) -> float:
    """Operations of an update on all samples."""
    lengths = np.array([len(s.prompt_tokens) + len(s.response_tokens) - 1 for s in samples], float)
    responses = sum(len(s.response_tokens) for s in samples)
    width = config.num_heads * config.head_dim
    operations = (
        6 * matrix_weights(config) * lengths.sum()
        + 6 * config.vocab_size * config.hidden_size * responses
    )
    # A token sees half of its segment on average; scores and mixing, forward and twice that
    # backward.
    return operations + 6 * 2 * config.num_layers * width * (lengths**2).sum() / 2


def measure_train(
    config: decoder.DecoderConfig, args: argparse.Namespace, peak: float, bandwidth: float
) -> Result:
    """One update with float32 masters and bf16 compute."""
    del bandwidth
    attend = functools.partial(attention.attention, kernels=attention.kernels_for(jax.devices()[0]))
    execution = decoder.Execution(compute_dtype(args), args.remat, attention=attend)

    def forward(
        params: decoder.Params,
        _: Any,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        images: Any,
    ) -> tuple[jax.Array, jax.Array]:
        hidden = decoder.hidden_states(config, params, tokens, positions, segment_ids, execution)
        return hidden, decoder.output_embedding(config, params)

    optimizer = make_optimizer(lr=1e-6)
    update = make_update(
        forward, optimizer, LossSettings(clip_low=0.2, clip_high=0.2), chunk=args.chunk
    )
    state = init_state(random_params(config, jnp.float32), optimizer)
    samples = household_samples(
        config, args.microbatches * args.rows * args.row_length, args.row_length
    )
    (batch,) = make_minibatches(
        samples,
        steps=len(samples),
        row_length=args.row_length,
        rows=args.rows,
        rng=np.random.default_rng(0),
    )
    stats = packing_stats([batch])
    batch = jax.device_put(batch)

    def step() -> jax.Array:
        nonlocal state
        state, metrics = update(state, batch)
        return metrics["policy/loss"]

    seconds = time_call(step, args.repeats)
    if args.trace:
        write_trace(step, args.trace)
    operations = count_operations(config, samples)
    return {
        "tokens_per_s": round(stats["batch/tokens"] / seconds),
        "seconds": round(seconds, 4),
        "mfu": round(operations / seconds / peak, 4),
        "padding_share": round(stats["batch/padding_share"], 4),
        "remat": args.remat,
        "row_length": args.row_length,
        "rows": args.rows,
        "forecast_memory_gb": round(forecast_memory(config, args), 2),
    }


def forecast_memory(config: decoder.DecoderConfig, args: argparse.Namespace) -> float:
    """GB of the memory estimate for such an update."""
    words = [
        f"--config.batch.rows={args.rows}",
        f"--config.batch.row_length={args.row_length}",
        "--config.rl.kl_coef=0",
        "--config.engine.slots=1",  # the cache does not count
    ]
    words += [f"--config.model.remat={args.remat}", f"--config.batch.logprob_chunk={args.chunk}"]
    estimate = memory_estimate(
        load_config("alfworld:1.5b", words), config, 1, platform=jax.default_backend()
    )
    return (
        sum(size for name, size in estimate.items() if name not in ("KV cache", "engine's weights"))
        / 1e9
    )


def attention_kernels(
    config: decoder.DecoderConfig, args: argparse.Namespace, peak: float, bandwidth: float
) -> Result:
    """One layer's attention: what is chosen for this device, against jax's own kernels; ms a call.

    `train`: forward and backward of a packed row of eight segments, and of the same as trees.
    `decode`: one token of every slot. A kernel that does not take these arrays is null.
    """
    del peak, bandwidth
    dtype = compute_dtype(args)
    rng = np.random.default_rng(0)
    heads = config.num_heads
    groups = config.num_kv_heads
    length = args.row_length
    width = config.head_dim

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), dtype)

    row = (
        draw(1, length, heads, width),
        draw(1, length, groups, width),
        draw(1, length, groups, width),
    )
    segments = jnp.arange(length)[None] // (length // 8) + 1
    segment_mask = (segments[:, :, None] == segments[:, None, :])[:, None]
    options = {"max_segment": length // 8, "kernels": attention.kernels_for(jax.devices()[0])}
    chosen = functools.partial(attention.attention, segment_ids=segments, **options)
    trees = jnp.stack([segments, segments * (length // 8)], axis=1)
    chosen_trees = functools.partial(attention.attention, segment_ids=trees, **options)
    cache = (
        draw(args.slots, groups, args.context, width),
        draw(args.slots, groups, args.context, width),
    )
    token = draw(args.slots, heads, width)
    last = jnp.full(args.slots, args.context - 1)
    flat = tuple(jnp.swapaxes(x, 1, 2) for x in cache)  # [S, C, G, K]
    one_token = functools.partial(attention.cached_attention, kernels=options["kernels"])
    kernels = {
        "train": {
            "chosen": functools.partial(make_gradient(chosen), *row),
            "trees": functools.partial(make_gradient(chosen_trees), *row),
        },
        "decode": {
            "chosen": functools.partial(
                jax.jit(one_token), token, *(x[None] for x in cache), 0, last
            )
        },
    }
    for name in ("xla", "cudnn"):
        dot = functools.partial(jax.nn.dot_product_attention, implementation=name)
        packed = functools.partial(dot, mask=segment_mask, is_causal=True)
        kernels["train"][name] = functools.partial(make_gradient(packed), *row)
        one = jax.jit(functools.partial(dot, key_value_seq_lengths=last + 1))
        kernels["decode"][name] = functools.partial(one, token[:, None], *flat)
    return {
        f"{kind}_{name}_ms": time_milliseconds(call, args.repeats)
        for kind, calls in kernels.items()
        for name, call in calls.items()
    }


def make_gradient(kernel: Callable[..., jax.Array]) -> Callable[..., object]:
    """Forward and backward pass of an attention kernel."""
    return jax.jit(jax.grad(lambda *row: kernel(*row).astype(jnp.float32).sum(), argnums=(0, 1, 2)))


def time_milliseconds(call: Callable[[], object], repeats: int) -> float | None:
    """The time of a call; None, and a line that says why, if the device has no such kernel."""
    try:
        return round(1e3 * time_call(call, repeats), 4)
    except Exception as err:  # jax and its backends raise many types
        print(
            f"not measured: {type(err).__name__}: {str(err).splitlines()[0][:200]}", file=sys.stderr
        )
        return None


def measure_iteration(
    config: decoder.DecoderConfig, args: argparse.Namespace, peak: float, bandwidth: float
) -> Result:
    """One iteration of configs/alfworld.py on generated games, without its compilation.

    The published sizes: 16 tasks x 8 episodes of 50 steps. A random policy never ends a response
    nor an episode, so responses have `response` tokens, about the published mean, and all episodes
    have `max_steps` steps.
    """
    del peak, bandwidth
    tiny = args.shape == "tiny"
    tokenizer = load_tokenizer(locate_file(TOKENIZER))
    if tiny:
        config = replace(config, vocab_size=tokenizer.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GIGPO_JAX_CACHE"] = f"{folder}/cache"
        save_hf(
            f"{folder}/model",
            config,
            random_params(config, compute_dtype(args)),
            tokenizer=tokenizer,
        )
        words = [
            f"--config.model.path={folder}/model",
            f"--config.sampling.max_response_tokens={args.response}",
        ]
        words += [
            f"--config.env.generate.{key}" for key in ("size=full", "seed=0", "splits.train=16")
        ]
        words += [
            "--config.eval.every=0",
            "--config.log.to=()",
            "--config.train.save_rollouts=0",
            f"--config.model.remat={args.remat}",
            f"--config.env.max_steps={args.max_steps}",
            *(f"--config.{setting}" for setting in args.set),
        ]
        if tiny:
            words += [f"--config.{setting}" for setting in TINY_SETTINGS]
        settings = resolve(load_config("alfworld:1.5b", words))
        with Trainer(settings, Path(folder) / "run", Hosts()) as trainer:
            metrics = asyncio.run(run_iteration(trainer))
    seconds = metrics["time/iteration"] - metrics.get("time/compile", 0.0)
    estimate = memory_estimate(settings, config, 1, platform=jax.default_backend())
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
        "behaviour_mismatch": round(metrics["policy/behaviour_mismatch"], 6),
        "forecast_memory_gb": round(peak_memory(settings, estimate) / 1e9, 2),
    }


async def run_iteration(trainer: Trainer) -> dict[str, float]:
    """Runs one iteration; returns its metrics and times."""
    trainer.timers.take()  # times of the start
    with trainer.timers.time("iteration"):
        await trainer.update(await trainer.roll_out(0, trainer.worker))
    return (trainer.pending or {}) | trainer.timers.take()


MEASUREMENTS: dict[
    str, Callable[[decoder.DecoderConfig, argparse.Namespace, float, float], Result]
] = {
    "train": measure_train,
    "decode": measure_decode,
    "prefill": measure_prefill,
    "chunks": measure_chunks,
    "attention": attention_kernels,
    "iteration": measure_iteration,
}


def measure_part(part: str, args: argparse.Namespace) -> tuple[dict[str, object], Result]:
    """Describes the device, and measures a part and its peak of memory."""
    if args.platform:
        jax.config.update("jax_platforms", args.platform)
    device = jax.devices()[0]
    args.platform = device.platform
    config = TINY if args.shape == "tiny" else PUBLISHED[args.shape]
    peak, bandwidth, source = find_ceilings(device, args.peak_tflops, args.bandwidth_gb)
    machine: dict[str, object] = {
        "device": device.device_kind,
        "shape": args.shape,
        "parameters": decoder.param_count(config),
        "peak_tflops": round(peak / 1e12, 3),
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
        "ceilings": source,
        "jax": jax.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
    result = MEASUREMENTS[part](config, args, peak, bandwidth)
    memory = device.memory_stats() or {}
    return machine, result | {"peak_memory_gb": round(memory.get("peak_bytes_in_use", 0) / 1e9, 2)}
