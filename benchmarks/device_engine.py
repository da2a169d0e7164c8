"""What benchmarks/gpu.py measures of the in-process engine's programs."""

import argparse
import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from device_timing import (
    Result,
    compute_dtype,
    matrix_weights,
    random_params,
    time_call,
    write_trace,
)

from gigpo_jax.engines.jax import slots as device_code
from gigpo_jax.models import attention, decoder, decoding
from gigpo_jax.models.cache import KVCache
from gigpo_jax.models.chunks import extend
from gigpo_jax.models.separate_layers import split_layers


def engine_params(
    config: decoder.DecoderConfig, args: argparse.Namespace, dtype: jnp.dtype
) -> decoder.Params:
    """Random weights as the engine has them on GPUs; with `stacked` as it had them before."""
    params = random_params(config, dtype)
    if args.stacked:
        return params
    split = jax.jit(functools.partial(split_layers, config))
    return params | {"layers": split(params["layers"])}


def measure_decode(
    config: decoder.DecoderConfig, args: argparse.Namespace, peak: float, bandwidth: float
) -> Result:
    """Sampling for `slots` sequences after `context` tokens, as the engine does, many steps."""
    del peak
    dtype = compute_dtype(args)
    params = engine_params(config, args, dtype)
    longest = args.context + args.steps
    cache = decoding.init_cache(config, args.slots, longest, dtype)
    decode = functools.partial(
        decoding.decode, config, kernels=attention.kernels_for(jax.devices()[0])
    )
    state = device_code.init_slots(args.slots)
    everywhere = functools.partial(jnp.full, args.slots)
    state = replace(
        state,
        position=everywhere(args.context),
        limit=everywhere(longest),
        active=everywhere(True),
    )
    # No slot ends before the last step.
    control = jnp.full(1 + args.slots, args.slots + 1, jnp.int32)

    @functools.partial(jax.jit, donate_argnums=1)
    def run(params: decoder.Params, cache: KVCache) -> tuple[jax.Array, KVCache]:
        cache, _, drawn = device_code.decode_tokens(
            decode, args.steps, params, cache, state, control
        )
        return drawn, cache

    def step() -> jax.Array:
        nonlocal cache
        drawn, cache = run(params, cache)
        return drawn

    seconds = time_call(step, args.repeats) / args.steps
    if args.trace:
        write_trace(step, args.trace)
    size = jnp.dtype(dtype).itemsize
    head = config.vocab_size * config.hidden_size
    cache_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    read = size * (
        matrix_weights(config) + head + cache_bytes * args.slots * (args.context + args.steps / 2)
    )
    return {
        "tokens_per_s": round(args.slots / seconds),
        "ms_a_step": round(1e3 * seconds, 3),
        "share_of_bound": round(read / bandwidth / seconds, 4),
        "slots": args.slots,
        "context": args.context,
        "stacked": int(args.stacked),
        "forecast_memory_gb": round(
            size * (head + matrix_weights(config) + cache_bytes * args.slots * longest) / 1e9, 2
        ),
    }


def measure_prefill(
    config: decoder.DecoderConfig, args: argparse.Namespace, peak: float, bandwidth: float
) -> Result:
    """Prompts of `context` tokens into the cache, 16 (tiny: 4) at a time."""
    del bandwidth
    dtype = compute_dtype(args)
    rows = min(16, args.slots)
    params = engine_params(config, args, dtype)
    cache = decoding.init_cache(config, rows, args.context, dtype)
    tokens = jnp.asarray(
        np.random.default_rng(0).integers(0, config.vocab_size, (rows, args.context)), jnp.int32
    )
    lengths = jnp.full(rows, args.context, jnp.int32)
    slots = jnp.arange(rows)
    kernels = attention.kernels_for(jax.devices()[0])
    run = jax.jit(functools.partial(decoding.prefill, config, kernels=kernels), donate_argnums=1)

    def step() -> jax.Array:
        nonlocal cache
        scores, cache = run(params, cache, tokens, lengths, slots)
        return scores

    seconds = time_call(step, args.repeats)
    width = config.num_heads * config.head_dim
    count = rows * args.context
    operations = (
        2 * matrix_weights(config) * count + 2 * config.vocab_size * config.hidden_size * rows
    )
    operations += 2 * config.num_layers * width * count * args.context
    return {
        "tokens_per_s": round(count / seconds),
        "mfu": round(operations / seconds / peak, 4),
        "rows": rows,
    }


def measure_chunks(
    config: decoder.DecoderConfig, args: argparse.Namespace, peak: float, bandwidth: float
) -> Result:
    """Chunks of prompts behind half of `context` tokens, `prefill_rows` of them at a time.

    With `stacked` attention is plain XLA, as it was.
    """
    del bandwidth
    dtype = compute_dtype(args)
    rows = args.prefill_rows
    length = min(32, args.context // 2)
    params = engine_params(config, args, dtype)
    cache = decoding.init_cache(config, args.slots, args.context, dtype)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, config.vocab_size, (rows, length)))
    lengths = jnp.full(rows, length, jnp.int32)
    slots = jnp.arange(rows) % args.slots
    starts = jnp.full(rows, args.context // 2, jnp.int32)
    kernels = None if args.stacked else attention.kernels_for(jax.devices()[0])
    run = jax.jit(functools.partial(extend, config, kernels=kernels), donate_argnums=1)

    def step() -> jax.Array:
        nonlocal cache
        scores, cache = run(params, cache, tokens, lengths, slots, starts)
        return scores

    seconds = time_call(step, args.repeats)
    count = rows * length
    width = config.num_heads * config.head_dim
    operations = 2 * matrix_weights(config) * count
    operations += 2 * 2 * config.num_layers * width * count * args.context / 2
    return {
        "tokens_per_s": round(count / seconds),
        "ms_a_call": round(1e3 * seconds, 3),
        "mfu": round(operations / seconds / peak, 4),
        "rows": rows,
        "stacked": int(args.stacked),
    }
