"""Gated delta-net layers (arXiv 2412.06464): their parameters, and how they mix tokens.

A layer has a state of fixed size, of the delta rule and of a short convolution, in place of keys
and values of all earlier tokens.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.delta_config import DeltaConfig
from gigpo_jax.models.delta_rule import convolve, delta_rule, delta_step
from gigpo_jax.models.layers import Linear, RMSNorm, draw_normal

NORM_EPS = 1e-6  # added to the squared length of queries and keys


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeltaState:
    """States of M layers and S slots, f32.

    Attributes:
      rule: [M, S, G, R, K, V], of the delta rule.
      inputs: [M, S, W - 1, C], the last inputs of the convolution.
    """

    rule: jax.Array
    inputs: jax.Array


class Vector(nnx.Module):
    """A parameter that is no matrix."""

    def __init__(self, values: jax.Array) -> None:
        self.values = nnx.Param(values)


class Taps(nnx.Module):
    """The taps of a convolution of single channels, [C, 1, W]."""

    def __init__(self, shape: tuple[int, ...], *, dtype: Any, rngs: nnx.Rngs) -> None:
        self.taps = nnx.Param(draw_normal(rngs, shape, dtype))


def make_mixer(
    config: DecoderConfig,
    make_linear: Callable[[str, int, int], Linear],
    *,
    dtype: Any,
    rngs: nnx.Rngs,
) -> dict[str, nnx.Module]:
    """Makes the parts of a layer that mix tokens, by their keys in the parameters."""
    delta = delta_config(config)
    width = config.hidden_size
    value_width = delta.value_heads * delta.value_dim
    zeros = jnp.zeros((delta.value_heads,), dtype)
    return {
        "delta_inputs": make_linear("delta_inputs", width, delta.channels),
        "delta_gate": make_linear("delta_gate", width, value_width),
        "delta_rate": make_linear("delta_rate", width, delta.value_heads),
        "delta_decay": make_linear("delta_decay", width, delta.value_heads),
        "delta_taps": Taps((delta.channels, 1, delta.taps), dtype=dtype, rngs=rngs),
        "delta_log_decay": Vector(zeros),
        "delta_decay_bias": Vector(zeros + 1.0),
        "delta_norm": RMSNorm(delta.value_dim, eps=config.rms_norm_eps, dtype=dtype),
        "delta_out": make_linear("delta_out", value_width, width),
    }


def mixer_axes() -> dict[str, Any]:
    """Names of the axes of a stack's mixers, as for `decoder.logical_axes`.

    They are whole on each device of `tensor`: queries, keys and values are one matrix.
    """
    axes: dict[str, Any] = {
        "delta_taps": {"taps": ("layers", "delta", "delta", "delta")},
        "delta_norm": {"scale": ("layers", "delta")},
        "delta_out": {"kernel": ("layers", "delta", "embed")},
    }
    for name in ("delta_inputs", "delta_gate", "delta_rate", "delta_decay"):
        axes[name] = {"kernel": ("layers", "embed", "delta")}
    for name in ("delta_log_decay", "delta_decay_bias"):
        axes[name] = {"values": ("layers", "delta")}
    return axes


def apply_mixer(
    layer: Any, y: jax.Array, mix: Callable[..., tuple[jax.Array, Any]], select: Callable
) -> tuple[jax.Array, Any]:
    """Mixes tokens by the delta rule.

    Args:
      layer: layer with the parts of `make_mixer`.
      y: [..., D] in the compute dtype, behind the norm.
      mix: function of (inputs [..., C] of the convolution, taps, rate and log decay of
        `delta_rule`) -> (what tokens read [..., G, R, V] f32, any second result).
      select: selection of tokens, as for `Layer`.

    Returns:
      [..., D] of the selected tokens, and the second result of `mix`.
    """
    # Rounded like the kernels, so that engine and learner compute with the same numbers.
    log_decay, bias = (
        vector.values[...].astype(y.dtype).astype(jnp.float32)
        for vector in (layer.delta_log_decay, layer.delta_decay_bias)
    )
    taps = layer.delta_taps.taps[...].astype(y.dtype).astype(jnp.float32)
    rate = jax.nn.sigmoid(layer.delta_rate(y).astype(jnp.float32))
    step = jax.nn.softplus(layer.delta_decay(y).astype(jnp.float32) + bias)
    read, extra = mix(layer.delta_inputs(y), taps, rate, -jnp.exp(log_decay) * step)
    width = read.shape[-1]
    read = select(read.astype(y.dtype).reshape(*y.shape[:-1], -1))
    gate = select(layer.delta_gate(y)).astype(jnp.float32)
    read = layer.delta_norm(read.reshape(*read.shape[:-1], -1, width)).reshape(gate.shape)
    read = read.astype(jnp.float32) * jax.nn.silu(gate)
    return layer.delta_out(read.astype(y.dtype)), extra


def text_mixer(
    config: DecoderConfig, segment_ids: jax.Array, lengths: jax.Array | None
) -> Callable[..., Any]:
    """Returns the `mix` of `apply_mixer` for packed texts; arguments as for `mix_texts`."""
    if segment_ids.ndim == 3:
        raise ValueError("segments of trees have no states")
    return functools.partial(mix_texts, config, segment_ids, lengths)


def mix_texts(
    config: DecoderConfig,
    segment_ids: jax.Array,
    lengths: jax.Array | None,
    inputs: jax.Array,
    taps: jax.Array,
    rate: jax.Array,
    log_decay: jax.Array,
) -> tuple[jax.Array, DeltaState | None]:
    """Mixes packed texts, as the `mix` of `apply_mixer`.

    With `lengths` [B], of one text a row, the second result has the rows' states without axis M.
    """
    delta = delta_config(config)
    convolved = convolve(inputs.astype(jnp.float32), taps, segment_ids)
    heads = split_channels(delta, jax.nn.silu(convolved).astype(inputs.dtype))
    grouped = (*rate.shape[:-1], delta.key_heads, -1)
    read, rule = delta_rule(*heads, rate.reshape(grouped), log_decay.reshape(grouped), segment_ids)
    if lengths is None:
        return read, None
    index = lengths[:, None] + jnp.arange(1 - delta.taps, 0)
    last = jnp.take_along_axis(inputs, jnp.maximum(index, 0)[..., None], axis=1)
    last = jnp.where(index[..., None] >= 0, last, 0.0).astype(jnp.float32)
    return read, DeltaState(rule, last)


def mix_tokens(
    config: DecoderConfig,
    states: DeltaState,
    layer: jax.Array | int,
    is_active: jax.Array,
    inputs: jax.Array,
    taps: jax.Array,
    rate: jax.Array,
    log_decay: jax.Array,
) -> tuple[jax.Array, DeltaState]:
    """Mixes one token of every slot, as the `mix` of `apply_mixer`.

    Args:
      config: model shape.
      states: states of all layers.
      layer: index of the layer among them.
      is_active: [S] bool, whether a slot has a token; the states of others stay.
      inputs: [S, C]; this and the other arguments are as for `mix`.
      taps: [C, 1, W].
      rate: [S, G * R].
      log_decay: [S, G * R].
    """
    delta = delta_config(config)
    old_rule = states.rule[layer]
    old_inputs = states.inputs[layer]
    window = jnp.concatenate([old_inputs, inputs[:, None].astype(jnp.float32)], axis=1)
    convolved = jnp.sum(window * taps[:, 0].T, axis=1)
    heads = split_channels(delta, jax.nn.silu(convolved).astype(inputs.dtype))
    grouped = (len(rate), delta.key_heads, -1)
    read, rule = delta_step(old_rule, *heads, rate.reshape(grouped), log_decay.reshape(grouped))
    rule = jnp.where(is_active[:, None, None, None, None], rule, old_rule)
    window = jnp.where(is_active[:, None, None], window[:, 1:], old_inputs)
    new_states = DeltaState(states.rule.at[layer].set(rule), states.inputs.at[layer].set(window))
    return read, new_states


def init_states(config: DecoderConfig, slots: int) -> DeltaState:
    """Makes the empty states of all layers."""
    delta = delta_config(config)
    heads = (delta.key_heads, delta.value_heads // delta.key_heads)
    sizes = (config.num_delta_layers, slots)
    return DeltaState(
        jnp.zeros((*sizes, *heads, delta.key_dim, delta.value_dim)),
        jnp.zeros((*sizes, delta.taps - 1, delta.channels)),
    )


def state_bytes(config: DecoderConfig) -> int:
    """Returns the bytes of a slot's states."""
    states = jax.eval_shape(lambda: init_states(config, 1))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(states))


def write_states(states: DeltaState, prompts: DeltaState, slots: jax.Array) -> DeltaState:
    """Writes the states [M, B, ...] of prompts into `slots` [B]; nowhere for S."""
    return jax.tree.map(
        lambda store, entries: store.at[:, slots].set(entries, mode="drop"), states, prompts
    )


def delta_config(config: DecoderConfig) -> DeltaConfig:
    """Returns the shape of the delta-net layers, which the model has."""
    assert config.delta is not None
    return config.delta


def split_channels(delta: DeltaConfig, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Splits [..., C] into queries and keys [..., G, K] and values [..., G, R, V], f32."""
    x = x.astype(jnp.float32)
    key_width = delta.key_heads * delta.key_dim
    query, key, value = jnp.split(x, (key_width, 2 * key_width), axis=-1)

    def scale_heads(x: jax.Array) -> jax.Array:
        heads = x.reshape(*x.shape[:-1], delta.key_heads, delta.key_dim)
        squares = jnp.sum(jnp.square(heads), axis=-1, keepdims=True)
        return heads * jax.lax.rsqrt(squares + NORM_EPS)

    value = value.reshape(*value.shape[:-1], delta.key_heads, -1, delta.value_dim)
    return scale_heads(query) * delta.key_dim**-0.5, scale_heads(key), value
