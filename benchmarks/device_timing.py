"""Times of device calls, for benchmarks/gpu.py."""

import argparse
import functools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from gigpo_jax.models import decoder

Result = dict[str, float | int | str | None]


def time_call(call: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call that returns arrays, after one that is not counted."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def matrix_weights(config: decoder.DecoderConfig) -> int:
    """Weights of the layers' matrices, that is without embedding, norms and biases."""
    layers = decoder.abstract_params(config)["layers"]
    return sum(leaf["kernel"].size for leaf in layers.values() if "kernel" in leaf)


def random_params(config: decoder.DecoderConfig, dtype: jnp.dtype) -> decoder.Params:
    """Weights drawn on the device."""
    return jax.jit(functools.partial(decoder.init_params, config, dtype=dtype))(jax.random.key(0))


def compute_dtype(args: argparse.Namespace) -> jnp.dtype:
    """bfloat16; float32 on a CPU."""
    return jnp.dtype("float32" if args.platform == "cpu" else "bfloat16")


def write_trace(call: Callable[[], object], file: Path) -> None:
    """Writes the device's part of a profile of one call, for https://ui.perfetto.dev."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            jax.block_until_ready(call())
        (trace_file,) = Path(folder).rglob("*.trace.json.gz")
        shutil.copy(trace_file, file)
