"""One accelerator: train-step MFU, decode tokens/s against the memory-bandwidth bound, peak memory; random weights.

    python benchmarks/gpu.py [--shape 1.5b] [--parts train decode] [--rows 1] [--row-length 8192] [--remat full]
    python benchmarks/gpu.py --shape tiny --platform cpu          # a smoke run without an accelerator

Writes benchmarks/results/gpu.json. Run the parts one by one to read the peak memory of each.

* MFU counts the operations that the update needs: 6 per matrix weight and token, attention within segments only, the
  vocabulary product at response tokens only; no padding, no recomputation. Peak: dense bf16 of the data sheet.
* The decode bound is the time to read every weight once and the filled part of the KV cache once a step.
  Bandwidth: of the data sheet. A device that is not in `DEVICES` needs --peak-tflops and --bandwidth-gb; without them
  a matrix product and a copy are measured instead, and the program says so.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.batching import Sample, make_minibatches, packing_stats
from gigpo_jax.models import qwen2
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.update import init_state, make_optimizer, make_update

TINY = qwen2.Qwen2Config(512, 64, 128, 2, 4, 2, 16)
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


def train(config: qwen2.Qwen2Config, args: argparse.Namespace, peak: float) -> dict[str, float | str | int]:
    """One update with float32 masters and bf16 compute."""
    dtype = jnp.bfloat16 if args.platform != "cpu" else jnp.float32

    def forward(params, _, tokens, positions, segment_ids):
        hidden = qwen2.hidden_states(config, params, tokens, positions, segment_ids, qwen2.Execution(dtype, args.remat))
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
    }


def decode(config: qwen2.Qwen2Config, args: argparse.Namespace, bandwidth: float) -> dict[str, float | int]:
    """Greedy decoding of `slots` sequences from a context of `context` tokens, many steps a call."""
    dtype = jnp.bfloat16 if args.platform != "cpu" else jnp.float32
    params = random_params(config, dtype)
    cache = qwen2.init_cache(config, args.slots, args.context + args.steps, dtype)

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
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=[*qwen2.PUBLISHED, "tiny"], default="1.5b")
    parser.add_argument("--platform", choices=["cuda", "tpu", "cpu"], default=None, help="default: what jax finds")
    parser.add_argument("--parts", nargs="+", choices=["train", "decode"], default=["train", "decode"])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--row-length", type=int, default=None, help="default: 8192; tiny: 128")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--remat", choices=["none", "dots", "full"], default="full")
    parser.add_argument("--chunk", type=int, default=1024, help="tokens whose logits exist at a time")
    parser.add_argument("--slots", type=int, default=None, help="default: 128; tiny: 4")
    parser.add_argument("--context", type=int, default=None, help="default: 1024; tiny: 32")
    parser.add_argument("--steps", type=int, default=None, help="decode steps in a call; default: 32; tiny: 4")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak-tflops", type=float, default=None, help="dense bf16; default: by the device's name")
    parser.add_argument("--bandwidth-gb", type=float, default=None, help="GB/s of its memory; default: by its name")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    args = parser.parse_args()
    if (args.peak_tflops is None) != (args.bandwidth_gb is None):
        parser.error("give both --peak-tflops and --bandwidth-gb, or neither")
    if args.peak_tflops is not None and not (args.peak_tflops > 0 and args.bandwidth_gb > 0):
        parser.error("--peak-tflops and --bandwidth-gb must be greater than 0")
    small = args.shape == "tiny"
    for name, usual, tiny in (("row_length", 8192, 128), ("slots", 128, 4), ("context", 1024, 32), ("steps", 32, 4)):
        if getattr(args, name) is None:
            setattr(args, name, tiny if small else usual)
    return args


def main() -> None:
    args = parse()
    if args.platform:
        jax.config.update("jax_platforms", args.platform)
    device = jax.devices()[0]
    args.platform = device.platform
    config = TINY if args.shape == "tiny" else qwen2.PUBLISHED[args.shape]
    peak, bandwidth, source = ceilings(device, args.peak_tflops, args.bandwidth_gb)
    record: dict[str, object] = {
        "device": device.device_kind,
        "shape": args.shape,
        "parameters": qwen2.param_count(config),
        "peak_tflops": round(peak / 1e12, 3),
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
        "ceilings": source,
        "jax": jax.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
    for part in args.parts:
        record[part] = train(config, args, peak) if part == "train" else decode(config, args, bandwidth)
        memory = device.memory_stats() or {}
        record[part]["peak_memory_gb"] = round(memory.get("peak_bytes_in_use", 0) / 1e9, 2)  # type: ignore[index]
        print(f"| {part} | " + " | ".join(f"{k} {v}" for k, v in record[part].items()) + " |")  # type: ignore[attr-defined]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
