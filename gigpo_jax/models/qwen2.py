"""Qwen2.5, Qwen3 and Llama 3 in Flax NNX: forward pass over packed rows, and a static KV cache.

The NNX modules name and initialise the parameters and define one layer. All functions take the parameters explicitly,
as a nested dict of arrays; the layers are stacked along a first axis L (`for_cpu`: apart). The dtype of the computation
may differ from that of the parameters; norm statistics, rotary embedding and softmax are always float32.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gigpo_jax.models import on_cpu
from gigpo_jax.models.attention import attention, cached_attention
from gigpo_jax.models.cache import KVCache, write_prompts, write_tokens
from gigpo_jax.models.execution import INPUT
from gigpo_jax.models.execution import REMAT_POLICIES as REMAT_POLICIES
from gigpo_jax.models.execution import Execution as Execution
from gigpo_jax.models.layers import Linear, RMSNorm, ValueHead, adapted_linears, normal
from gigpo_jax.models.qwen2_config import PUBLISHED as PUBLISHED
from gigpo_jax.models.qwen2_config import Qwen2Config
from gigpo_jax.models.rotary import Rotary, rotary, rotate
from gigpo_jax.models.vision import Features, Images, VisionTower, with_images
from gigpo_jax.models.vision import logical_axes as vision_axes

Params = dict[str, Any]
Select = Callable[[jax.Array], jax.Array]  # some tokens of an array


class Layer(nnx.Module):
    """One decoder layer; attention is an argument, so training, prefill and decoding share it.

    The linear layers in `adapted` have a low-rank pair (`models.lora`).
    """

    def __init__(self, config: Qwen2Config, *, dtype: Any, rngs: nnx.Rngs, adapted: Collection[str] = ()):
        width, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim

        def linear(name: str, inputs: int, outputs: int, bias: bool) -> Linear:
            how = {"adapted": name in adapted, "for_cpu": config.for_cpu}
            return Linear(inputs, outputs, bias=bias, dtype=dtype, rngs=rngs, **how)

        bias = config.model_type == "qwen2"
        self.head_dim, self.for_cpu = head_dim, config.for_cpu
        self.attention_norm = RMSNorm(width, eps=config.rms_norm_eps, dtype=dtype)
        self.query = linear("query", width, config.num_heads * head_dim, bias)
        self.key = linear("key", width, config.num_kv_heads * head_dim, bias)
        self.value = linear("value", width, config.num_kv_heads * head_dim, bias)
        if config.model_type == "qwen3":
            self.query_norm = RMSNorm(head_dim, eps=config.rms_norm_eps, dtype=dtype)
            self.key_norm = RMSNorm(head_dim, eps=config.rms_norm_eps, dtype=dtype)
        self.out = linear("out", config.num_heads * head_dim, width, False)
        self.mlp_norm = RMSNorm(width, eps=config.rms_norm_eps, dtype=dtype)
        self.gate = linear("gate", width, inner, False)
        self.up = linear("up", width, inner, False)
        self.down = linear("down", inner, width, False)

    def __call__(
        self, x: jax.Array, angles: Rotary, attend: Callable, select: Select = lambda x: x
    ) -> tuple[jax.Array, Any]:
        """Runs the layer.

        Args:
          x: [..., D] residual stream in the compute dtype.
          angles: from `angles_of`.
          attend: (query [..., H, K], key [..., G, K], value [..., G, K]) -> (mixed values [..., H, K], anything).
          select: of the residual stream and of the mixed values [..., H * K] those tokens that the rest of the layer
            computes with.

        Returns:
          The residual stream [..., D] of these tokens, and the second result of `attend`.
        """
        y = self.attention_norm(x)
        query, key, value = (
            z.reshape(*z.shape[:-1], -1, self.head_dim) for z in (self.query(y), self.key(y), self.value(y))
        )
        if hasattr(self, "query_norm"):
            query, key = self.query_norm(query), self.key_norm(key)
        mixed, extra = attend(rotate(query, angles), rotate(key, angles), value)
        x = select(x) + self.out(select(mixed.reshape(*x.shape[:-1], -1)))
        y = self.mlp_norm(x)
        gate = self.gate(y).astype(jnp.float32 if self.for_cpu else x.dtype)
        return x + self.down((jax.nn.silu(gate) * self.up(y)).astype(x.dtype)), extra


class Qwen2(nnx.Module):
    """The whole parameter tree: embedding, stacked layers, final norm and, if untied, the output or value head."""

    def __init__(self, config: Qwen2Config, *, dtype: Any, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap(in_axes=0)
        def layers(rngs: nnx.Rngs) -> Layer:
            return Layer(config, dtype=dtype, rngs=rngs)

        self.embed = nnx.Param(normal(rngs, (config.vocab_size, config.hidden_size), dtype))
        self.layers = layers(rngs)
        self.final_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)
        if config.value_head:
            self.value_head = ValueHead(config.hidden_size, dtype=dtype)
        elif not config.tie_word_embeddings:
            self.head = nnx.Param(normal(rngs, (config.vocab_size, config.hidden_size), dtype))
        if config.vision is not None:
            self.vision = VisionTower(config.vision, config.hidden_size, dtype=dtype, rngs=rngs)


@functools.partial(jax.jit, static_argnames=("config", "dtype"))
def init(config: Qwen2Config, key: jax.Array, dtype: Any = jnp.float32) -> Params:
    """Draws random parameters: matrices with standard deviation 0.02, biases 0, norm scales 1.

    Returns:
      A nested dict of arrays; under `layers` every leaf has a first axis of length L.
    """
    model = Qwen2(config, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(params=key))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def abstract_params(config: Qwen2Config, dtype: Any = jnp.float32) -> Params:
    """The tree of `init` as shapes and dtypes, without allocating anything."""
    return jax.eval_shape(lambda: init(config, jax.random.key(0), dtype))


def param_count(config: Qwen2Config) -> int:
    """The number of parameters; a tied embedding counts once."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))


def logical_axes(config: Qwen2Config) -> Params:
    """Names the axes of every parameter, for sharding: a tree like the parameters with tuples of axis names.

    The names are "layers", "vocab", "embed", "heads" (H x K, one head after the other), "kv_heads" (G x K), "head" (K),
    "mlp" and "value".
    """
    linear = {"query": "heads", "key": "kv_heads", "value": "kv_heads"}
    layers: Params = {name: {"kernel": ("layers", "embed", out)} for name, out in linear.items()}
    if config.model_type == "qwen2":
        layers = {name: layers[name] | {"bias": ("layers", out)} for name, out in linear.items()}
    if config.model_type == "qwen3":
        layers |= {name: {"scale": ("layers", "head")} for name in ("query_norm", "key_norm")}
    layers |= {name: {"kernel": ("layers", "embed", "mlp")} for name in ("gate", "up")}
    layers |= {"out": {"kernel": ("layers", "heads", "embed")}, "down": {"kernel": ("layers", "mlp", "embed")}}
    layers |= {name: {"scale": ("layers", "embed")} for name in ("attention_norm", "mlp_norm")}
    axes: Params = {"embed": ("vocab", "embed"), "layers": layers, "final_norm": {"scale": ("embed",)}}
    if config.vision is not None:
        axes["vision"] = vision_axes()
    if config.value_head:
        return axes | {"value_head": {"kernel": ("embed", "value"), "bias": ("value",)}}
    return axes if config.tie_word_embeddings else axes | {"head": ("vocab", "embed")}


def output_embedding(config: Qwen2Config, params: Params) -> jax.Array:
    """The output matrix [V, D] in the parameters' dtype (the input embedding, if tied)."""
    return params["embed"] if config.tie_word_embeddings else params["head"]


def values(params: Params, hidden: jax.Array) -> jax.Array:
    """What the value head `params["value_head"]` reads off hidden states: [..., D] -> [...] f32."""
    head = nnx.eval_shape(lambda: ValueHead(hidden.shape[-1], dtype=jnp.float32))
    return nnx.merge(nnx.graphdef(head), params["value_head"])(hidden)


def hidden_states(
    config: Qwen2Config,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    execution: Execution = Execution(),
    images: Images | None = None,
) -> jax.Array:
    """Runs the model up to the final norm.

    Args:
      config: the shape.
      params: as from `init`.
      tokens: [B, T] i32.
      positions: [B, T] i32, from 0 in each segment; None counts 0..T-1. [3, B, T] for texts with images.
      segment_ids: [B, T] i32, 0 for padding, segments from 1; None is one segment a row.
      execution: dtype, rematerialisation and sharding.
      images: those of a model with a vision tower; None: there are none.

    Returns:
      [B, T, D] in the compute dtype.
    """
    return _forward(config, params, tokens, positions, segment_ids, execution, images)[0]


def logits(
    config: Qwen2Config,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    *,
    dtype: Any = None,
) -> jax.Array:
    """Scores every next token: [B, T] -> [B, T, V] f32. Arguments as for `hidden_states`."""
    hidden = hidden_states(config, params, tokens, positions, segment_ids, Execution(dtype))
    return unembed(config, params, hidden)


def init_cache(config: Qwen2Config, slots: int, length: int, dtype: Any = jnp.float32) -> KVCache:
    """An empty cache for `slots` sequences of at most `length` tokens."""
    shape = (config.num_layers, slots, config.num_kv_heads, length, config.head_dim)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def prefill(
    config: Qwen2Config,
    params: Params,
    cache: KVCache,
    tokens: jax.Array,
    lengths: jax.Array,
    slots: jax.Array,
    positions: jax.Array | None = None,
    images: Images | Features | None = None,
    kernels: str | None = None,
) -> tuple[jax.Array, KVCache]:
    """Runs prompts and writes them into slots of the cache, from index 0.

    Nine parameters: the arrays of a batch are passed one by one, as to `hidden_states`.

    Args:
      config: the shape.
      params: as from `init`.
      cache: updated in place if donated.
      tokens: [B, T] i32, each prompt padded on the right; T at most the cache's length.
      lengths: [B] i32, tokens of each prompt without padding.
      slots: [B] i32, the slot of each prompt; a row with S or more is dropped.
      positions, images: as for `hidden_states`.
      kernels: as for `attention.attention`.

    Returns:
      The logits [B, V] f32 after the last token of each prompt, and the cache.
    """
    segment_ids = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
    execution = Execution(attention=functools.partial(attention, kernels=kernels))
    hidden, (keys, values) = _forward(config, params, tokens, positions, segment_ids, execution, images, lengths)
    return unembed(config, params, hidden), write_prompts(cache, keys, values, slots)


def decode(
    config: Qwen2Config,
    params: Params,
    cache: KVCache,
    tokens: jax.Array,
    positions: jax.Array,
    shift: jax.Array | None = None,
) -> tuple[jax.Array, KVCache]:
    """Runs one token of every slot.

    Args:
      config: the shape.
      params: as from `init`.
      cache: updated in place if donated or carried through a loop.
      tokens: [S] i32, the newest token of each slot.
      positions: [S] i32, the number of tokens before it; at the cache's length or more nothing is written.
      shift: [S] i32, added to it for the rotary embedding, as images take fewer positions than tokens; None: 0.

    Returns:
      The logits [S, V] f32 of the next token, and the cache with the new token.
    """
    angles = angles_of(config, positions if shift is None else positions + shift)

    def attend(
        index: jax.Array, cache: KVCache, query: jax.Array, key: jax.Array, value: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        new = write_tokens(cache, key, value, index, positions)
        return cached_attention(query, new.key, new.value, index, positions), new

    x, cache = through_layers(config, params, cache, embedded(config, params, tokens), angles, attend)
    return unembed(config, params, final_norm(config, params, x)), cache


def through_layers(
    config: Qwen2Config,
    params: Params,
    cache: KVCache,
    x: jax.Array,
    angles: Rotary,
    attend: Callable,
    select: Select = lambda x: x,
) -> tuple[jax.Array, KVCache]:
    """Runs all layers on x [..., D]; `attend` takes a layer's index, the cache, query, key and value.

    The result is that of the tokens that `select` takes.
    """
    graph, layers = _layer_graph(config, adapted_linears(params["layers"])), params["layers"]
    if config.for_cpu:
        for number, (layer, chosen) in enumerate(_apart(params, select)):
            x, cache = nnx.merge(graph, layer)(x, angles, functools.partial(attend, number, cache), chosen)
        return x, cache

    # The cache is the carry of the loop and is updated in place; as input and output of a scan it would be copied.
    def body(index: jax.Array, carry: tuple[jax.Array, KVCache]) -> tuple[jax.Array, KVCache]:
        x, cache = carry
        layer = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[index], layers))
        return layer(x, angles, functools.partial(attend, index, cache))

    x, cache = jax.lax.fori_loop(0, config.num_layers, body, (x, cache))
    return select(x), cache


def _apart(params: Params, select: Select) -> list[tuple[Params, Select]]:
    """The layers of `on_cpu.apart`; in the last one `select` saves work."""
    *others, last = params["layers"]
    return [*((layer, lambda x: x) for layer in others), (last, select)]


def last_tokens(lengths: jax.Array) -> Select:
    """Takes the last of the `lengths` [B] tokens of each row from x [B, T, D]: [B, D]."""
    last = jnp.maximum(lengths - 1, 0)[:, None, None]
    return lambda x: jnp.take_along_axis(x, last, axis=1)[:, 0]


def angles_of(config: Qwen2Config, positions: jax.Array, sections: Sequence[int] = ()) -> Rotary:
    """The angles of `rotary` for heads of the model."""
    angles = rotary(positions, config.head_dim, config.rope_theta, config.rope_scaling, sections)
    return jax.tree.map(on_cpu.once, angles) if config.for_cpu else angles


def _forward(
    config: Qwen2Config,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None,
    segment_ids: jax.Array | None,
    execution: Execution,
    images: Images | Features | None,
    lengths: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
    """As `hidden_states`; with `lengths` [B] of `last_tokens` alone, and all keys and values, each [L, B, T, G, K]."""
    dtype = params["embed"].dtype if execution.dtype is None else jnp.dtype(execution.dtype)
    constrain = execution.constrain
    positions = jnp.arange(tokens.shape[1])[None] if positions is None else positions
    segment_ids = jnp.ones(tokens.shape, jnp.int32) if segment_ids is None else segment_ids
    graph = _layer_graph(config, adapted_linears(params["layers"]))
    sections = config.vision.sections if config.vision is not None and positions.ndim == 3 else ()
    angles = angles_of(config, positions, sections)
    select = (lambda x: x) if lengths is None else last_tokens(lengths)

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, Any]:
        mixed = execution.attention(query, key, value, segment_ids, max_segment=execution.max_segment)
        return mixed, None if lengths is None else (key, value)

    def body(x: jax.Array, layer: Params, select: Select = lambda x: x) -> tuple[jax.Array, Any]:
        x, kept = nnx.merge(graph, layer)(checkpoint_name(x, INPUT), angles, attend, select)
        return constrain(x), kept

    def remat(body: Callable) -> Callable:
        if execution.remat == "none":
            return body
        return jax.checkpoint(body, policy=REMAT_POLICIES[execution.remat], prevent_cse=False)

    x = embedded(config, params, tokens).astype(dtype)
    if images is not None:
        assert config.vision is not None
        x = with_images(config.vision, params["vision"], x, images, remat, constrain)
    if config.for_cpu:
        each = []
        for layer, chosen in _apart(params, select):
            x, kept = body(x, layer, chosen)
            each.append(kept)
        return final_norm(config, params, x), jax.tree.map(lambda *kept: jnp.stack(kept), *each)
    unroll = min(execution.unroll, config.num_layers)
    x, kept = jax.lax.scan(remat(body), constrain(x), params["layers"], unroll=unroll)
    return select(final_norm(config, params, x)), kept


def embedded(config: Qwen2Config, params: Params, tokens: jax.Array) -> jax.Array:
    """The embeddings [..., D] of tokens [...]."""
    return on_cpu.rows(params["embed"], tokens) if config.for_cpu else params["embed"][tokens]


def final_norm(config: Qwen2Config, params: Params, x: jax.Array) -> jax.Array:
    """The norm after the last layer, [..., D] -> [..., D]."""
    norm = nnx.eval_shape(lambda: RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=x.dtype))
    return nnx.merge(nnx.graphdef(norm), params["final_norm"])(x)


def unembed(config: Qwen2Config, params: Params, hidden: jax.Array) -> jax.Array:
    """Scores of all tokens: hidden states [..., D] -> [..., V] f32."""
    matrix = output_embedding(config, params).astype(hidden.dtype)
    if config.for_cpu:
        return on_cpu.product(hidden, matrix)
    return jnp.einsum("...d,vd->...v", hidden, matrix, preferred_element_type=jnp.float32)


@functools.cache
def _layer_graph(config: Qwen2Config, adapted: tuple[str, ...]) -> Any:
    """The graph that `nnx.merge` combines with the parameters of one layer into a `Layer`."""
    make = functools.partial(Layer, config, dtype=jnp.float32, adapted=adapted)
    return nnx.graphdef(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
