"""Decoding on a CPU: the same model as `qwen2.decode`, with the weights laid out for a few rows at a time.

A step of decoding reads every weight once, so what counts is how. Three things differ from the stacked model, none in
the result beyond rounding:
- every layer has arrays of its own, since a layer cut out of a stacked array is copied at every step;
- kernels are [O, I] and stand on the left, W x^T: XLA's CPU matrix product is up to twice as fast with the large
  matrix there when there are few rows;
- attention over the cache is multiplied and summed, not a batch of tiny matrix products.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.models import qwen2
from gigpo_jax.models.attention import MASKED
from gigpo_jax.models.qwen2 import Params, Qwen2Config
from gigpo_jax.models.rotary import rotary, rotate


@functools.partial(jax.tree_util.register_dataclass, data_fields=("key", "value"), meta_fields=())
@dataclass(frozen=True)
class LayerCaches:
    """Keys and values of S slots, an array a layer.

    Attributes:
      key: L arrays [S, G, C, K] in the cache dtype, rotary applied.
      value: L arrays [S, G, C, K].
    """

    key: tuple[jax.Array, ...]
    value: tuple[jax.Array, ...]


def unstack(config: Qwen2Config, params: Params) -> tuple[Params, ...]:
    """Returns the layers [L, ...] of `params` one by one, kernels turned to [O, I]. Run it jitted, once."""

    def layer(index: int) -> Params:
        return jax.tree.map(lambda leaf: leaf[index].T, params["layers"])

    return tuple(layer(index) for index in range(config.num_layers))


def init_cache(config: Qwen2Config, slots: int, length: int, dtype: Any = jnp.float32) -> LayerCaches:
    """Returns an empty cache; arguments as for `qwen2.init_cache`."""
    shape = (slots, config.num_kv_heads, length, config.head_dim)
    empty = [tuple(jnp.zeros(shape, dtype) for _ in range(config.num_layers)) for _ in range(2)]
    return LayerCaches(*empty)


def prefill(
    config: Qwen2Config, params: Params, cache: LayerCaches, tokens: jax.Array, lengths: jax.Array, slots: jax.Array
) -> tuple[jax.Array, LayerCaches]:
    """As `qwen2.prefill`, into this cache; `params` are the stacked ones."""

    batch, length = tokens.shape
    rows = qwen2.init_cache(config, batch, length, cache.key[0].dtype)
    logits, rows = qwen2.prefill(config, params, rows, tokens, lengths, jnp.arange(batch))

    def write(stores: tuple[jax.Array, ...], new: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(store.at[slots, :, :length].set(layer, mode="drop") for store, layer in zip(stores, new))

    return logits, LayerCaches(write(cache.key, rows.key), write(cache.value, rows.value))


def decode(
    config: Qwen2Config,
    params: Params,
    layers: tuple[Params, ...],
    cache: LayerCaches,
    tokens: jax.Array,
    positions: jax.Array,
) -> tuple[jax.Array, LayerCaches]:
    """As `qwen2.decode`.

    Args:
      config: the shape.
      params: the stacked parameters; embedding, final norm and head are read.
      layers: from `unstack`, in the compute dtype.
      cache: the cache.
      tokens: [S] i32, the newest token of each slot.
      positions: [S] i32, where it stands.

    Returns:
      The logits [S, V] f32 of the token after, and the cache with the new token in it.
    """
    slots = jnp.arange(tokens.shape[0])
    angles = rotary(positions, config.head_dim, config.rope_theta)
    keys, values = list(cache.key), list(cache.value)
    x = params["embed"][tokens]
    for index, layer in enumerate(layers):
        y = _norm(config, layer["attention_norm"], x)
        query, key, value = (
            _linear(layer[name], y).reshape(*x.shape[:1], -1, config.head_dim) for name in ("query", "key", "value")
        )
        query, key = rotate(query, angles), rotate(key, angles)
        keys[index] = keys[index].at[slots, :, positions].set(key.astype(keys[index].dtype), mode="drop")
        values[index] = values[index].at[slots, :, positions].set(value.astype(values[index].dtype), mode="drop")
        mixed = _attention(query, keys[index], values[index], positions)
        x = x + _linear(layer["out"], mixed.reshape(*x.shape[:1], -1))
        y = _norm(config, layer["mlp_norm"], x)
        x = x + _linear(layer["down"], jax.nn.silu(_linear(layer["gate"], y)) * _linear(layer["up"], y))
    x = _norm(config, params["final_norm"], x)
    return qwen2._unembed(config, params, x), LayerCaches(tuple(keys), tuple(values))


def _linear(layer: Params, x: jax.Array) -> jax.Array:
    y = jax.lax.dot_general(layer["kernel"], x, (((1,), (1,)), ((), ()))).T
    if "lora_a" in layer:
        y = y + (x @ layer["lora_a"].T) @ layer["lora_b"].T
    return y + layer["bias"] if "bias" in layer else y


def _norm(config: Qwen2Config, layer: Params, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + config.rms_norm_eps)
    return wide.astype(x.dtype) * layer["scale"]


def _attention(query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array) -> jax.Array:
    """As `attention.cached_attention`: query [S, H, K], key and value [S, G, C, K] -> [S, H, K]."""
    slots, heads, head_dim = query.shape
    groups, length = key.shape[1:3]
    wide = query.reshape(slots, groups, heads // groups, 1, head_dim).astype(jnp.float32) * head_dim**-0.5
    scores = jnp.sum(wide * key[:, :, None].astype(jnp.float32), axis=-1)
    seen = jnp.arange(length) <= positions[:, None]
    probs = jax.nn.softmax(jnp.where(seen[:, None, None], scores, MASKED), axis=-1)
    mixed = jnp.sum(probs[..., None] * value[:, :, None].astype(jnp.float32), axis=-2)
    return mixed.reshape(slots, heads, head_dim).astype(query.dtype)
