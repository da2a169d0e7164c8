"""The estimate of a long run on CPUs, in one line."""

import os
import time

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.models.decoder import DecoderConfig

LONG_HOURS = 1.0  # shorter runs print no estimate


def describe_cpu_estimate(
    config: ConfigDict, shape: DecoderConfig, flops: int, flops_per_s: float
) -> str:
    """Describes processor, memory and hours of a run; "" for a short one.

    Args:
      config: Resolved config.
      shape: Shape of the model.
      flops: FLOP to train on one token.
      flops_per_s: Measured speed of the processor.
    """
    train = config.train
    sampling = config.sampling
    steps = train.groups * train.group_size * config.env.max_steps
    tokens = steps * (sampling.max_prompt_tokens + sampling.max_response_tokens)
    # A token is read or written by the engine, two FLOP a parameter of six, and learnt.
    hours = train.iterations * tokens * flops * (1 + 1 / 3) / flops_per_s / 3600
    if hours < LONG_HOURS:
        return ""
    from gigpo_jax.devices.memory import GIB, memory_estimate

    devices = jax.device_count()
    needed = devices * sum(memory_estimate(config, shape, devices, platform="cpu").values()) / GIB
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    return (
        f"estimate: {os.cpu_count()} CPU cores, {needed:.1f} of {memory:.0f} GiB, up to "
        f"{tokens:,} tokens an iteration and {hours:,.0f} hours in all at "
        f"{flops_per_s / 1e9:.0f} GFLOP/s (measured), if prompts and episodes are as long as "
        "allowed; smaller: config.train.groups, train.group_size, env.max_steps"
    )


def measure_flops() -> float:
    """Measures the FLOP/s of products of float32 matrices; takes a fraction of a second."""
    size = 1024
    matrix = np.ones((size, size), np.float32)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / min(seconds)
