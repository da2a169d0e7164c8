"""Prompts and single tokens over a KV cache of static shape."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from gigpo_jax.models.attention import attention, cached_attention
from gigpo_jax.models.cache import KVCache, write_prompts, write_tokens
from gigpo_jax.models.decoder import apply_final_norm, embed_tokens, run_model, score_tokens
from gigpo_jax.models.decoder_config import DELTA_LAYERS, DecoderConfig, LayerSpan
from gigpo_jax.models.execution import Execution, Experts
from gigpo_jax.models.layer import Params, Select, layer_graph, select_all
from gigpo_jax.models.layers import adapted_linears
from gigpo_jax.models.rotary import Angles, model_angles

if TYPE_CHECKING:
    from gigpo_jax.models.vision.vision import Features, Images


def init_cache(
    config: DecoderConfig,
    slots: int,
    length: int,
    dtype: Any = jnp.float32,
    *,
    keeps_routes: bool = False,
    prefill_chunk: int = 0,
    rows: int = 1,
) -> KVCache:
    """Makes an empty cache for `slots` sequences of at most `length` tokens each.

    With `keeps_routes` the cache of a model with experts has room for the experts of every token.
    If prompts are read in chunks, `rows` of them in a call, states have checkpoints.
    """
    depth = config.num_layers - config.num_delta_layers - config.num_window_layers
    shape = (depth, slots, config.num_kv_heads, length, config.head_dim)
    cache = KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
    if not (keeps_routes or config.layer_types):
        return cache
    from gigpo_jax.models.special_caches import add_special

    return add_special(
        config, cache, keeps_routes=keeps_routes, prefill_chunk=prefill_chunk, rows=rows
    )


def prefill(
    config: DecoderConfig,
    params: Params,
    cache: KVCache,
    tokens: jax.Array,
    lengths: jax.Array,
    slots: jax.Array,
    positions: jax.Array | None = None,
    images: "Images | Features | None" = None,
    kernels: str | None = None,
    experts: Experts | None = None,
) -> tuple[jax.Array, KVCache]:
    """Runs prompts and writes them into slots from index 0.

    Args:
      config, params, positions, images: arguments of `hidden_states`.
      cache: cache; updated in place if donated.
      tokens: [B, T] i32, each prompt padded on the right; T at most the cache's length.
      lengths: [B] i32, tokens of each prompt without padding.
      slots: [B] i32, the slot of each prompt; a row with S or more is dropped.
      kernels: attention kernels, as for `attention.attention`.
      experts: function for the experts.

    Returns:
      The logits [B, V] f32 after the last token of each prompt, and the cache.
    """
    segment_ids = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
    # No other setting: prompts are read in the parameters' dtype, without gradients.
    execution = Execution(attention=functools.partial(attention, kernels=kernels), experts=experts)
    result = run_model(
        config,
        params,
        tokens,
        positions,
        segment_ids,
        execution,
        images,
        lengths,
        keeps_routes=cache.routes is not None,
    )
    if cache.is_plain:
        keys, values = result.keys_values
        cache = write_prompts(cache, keys, values, slots)
    else:
        from gigpo_jax.models.special_caches import write_special

        cache = write_special(config, cache, result, lengths, slots)
    return score_tokens(config, params, result.hidden), cache


def decode(
    config: DecoderConfig,
    params: Params,
    cache: KVCache,
    tokens: jax.Array,
    positions: jax.Array,
    shift: jax.Array | None = None,
    kernels: str | None = None,
    experts: Experts | None = None,
) -> tuple[jax.Array, KVCache]:
    """Runs one token of every slot.

    Args:
      config, params: arguments of `hidden_states`.
      cache: cache; updated in place if donated or carried through a loop.
      tokens: [S] i32, the newest token of each slot.
      positions: [S] i32, the number of earlier tokens; at the cache's length or more nothing is
        written.
      shift: [S] i32, added to the positions of the rotary embedding, as images take fewer positions
        than tokens; None: 0.
      kernels: attention kernels, as for `attention.cached_attention`.
      experts: function for the experts.

    Returns:
      The logits [S, V] f32 of the next token, and the cache with the new token.
    """
    angles = model_angles(config, positions if shift is None else positions + shift)
    capacity = cache.key.shape[3]

    def attend(
        window: int, index: jax.Array, cache: KVCache, *arrays: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        query, key, value = arrays
        # Written first, because a token attends to itself too.
        if window:
            from gigpo_jax.models.window_cache import write_window_token

            cache = write_window_token(cache, key, value, index, positions, capacity)
        else:
            cache = write_tokens(cache, key, value, index, positions)
        mixed = cached_attention(query, cache.key, cache.value, index, positions, kernels, window)
        return mixed, cache

    def write_routes(index: jax.Array, cache: KVCache, routes: jax.Array) -> KVCache:
        from gigpo_jax.models.routes import write_token_routes

        return write_token_routes(cache, routes, index, positions)

    def mix(index: jax.Array, cache: KVCache, *arrays: jax.Array) -> tuple[jax.Array, KVCache]:
        from gigpo_jax.models.delta_layer import mix_tokens

        mixed, states = mix_tokens(config, cache.states, index, positions < capacity, *arrays)
        return mixed, replace(cache, states=states)

    x = embed_tokens(config, params, tokens)
    x, cache = run_layers(
        config, params, cache, x, angles, attend, write_routes, experts=experts, mix=mix
    )
    return score_tokens(config, params, apply_final_norm(config, params, x)), cache


def run_layers(
    config: DecoderConfig,
    params: Params,
    cache: KVCache,
    x: jax.Array,
    angles: Angles,
    attend: Callable,
    write_routes: Callable,
    select: Select = select_all,
    experts: Experts | None = None,
    deep: jax.Array | None = None,
    mix: Callable | None = None,
) -> tuple[jax.Array, KVCache]:
    """Runs all layers over a cache.

    Args:
      config, params: arguments of `hidden_states`.
      cache: the cache.
      x: [..., D] embeddings.
      angles: result of `model_angles`.
      attend: function (window of the layer, its index in the cache, cache, query, key, value) ->
        (mixed values, cache); layers with a window have the cache `windows`.
      write_routes: function (index of the layer among those with experts, cache, experts of the
        tokens [..., k]) -> cache; called if the cache has room for them.
      select: selection of the tokens in the result.
      experts: function for the experts.
      deep: features of images to add after layers, the second result of `insert_images`, or None.
      mix: function (index of the layer among those without attention, cache, arguments of `mix` in
        `apply_mixer`) -> (what tokens read, cache); None if all layers have attention.

    Returns:
      The residual stream [..., D] of the selected tokens, and the cache.
    """
    spans: Sequence[LayerSpan] = config.layer_spans
    if len(angles) > 1:
        from gigpo_jax.models.layer_kinds import split_spans

        spans = split_spans(config)
    for span in spans:
        layers = params[span.stack]
        graph = layer_graph(config, adapted_linears(layers), span.stack)

        def run_layer(
            index: jax.Array | int,
            params: Params,
            carry: tuple[jax.Array, KVCache],
            layer_select: Select = select_all,
            span: LayerSpan = span,
            graph: Any = graph,
        ) -> tuple[jax.Array, KVCache]:
            x, cache = carry
            # `index` counts the layers of the stack, `number` all layers of the model.
            number = index + (span.first - span.start)
            place = index + (span.place - span.start)
            window = span.kind.window
            store = cache.windows if window else cache
            assert store is not None
            if span.stack == DELTA_LAYERS:
                assert mix is not None
                attend_layer = functools.partial(mix, place, store)
            else:
                attend_layer = functools.partial(attend, window, place, store)
            layer = nnx.merge(graph, params)
            x, store, routes = layer(x, angles[span.kind], attend_layer, layer_select, experts)
            cache = replace(cache, windows=store) if window else store
            if deep is not None:
                from gigpo_jax.models.vision.vision import add_deep_features

                x = add_deep_features(x, deep, number, layer_select)
            if routes is not None and cache.routes is not None:
                cache = write_routes(index, cache, routes)
            return x, cache

        # The experts of dropped tokens would not be known.
        last_select = select if cache.routes is None else select_all
        x, cache = _run_stack(config, span, run_layer, layers, (x, cache), last_select)
    if isinstance(layers, tuple) and cache.routes is None:
        return x, cache
    return select(x), cache


def _run_stack(
    config: DecoderConfig,
    span: LayerSpan,
    run_layer: Callable[..., tuple[jax.Array, KVCache]],
    layers: Any,
    carry: tuple[jax.Array, KVCache],
    last_select: Select,
) -> tuple[jax.Array, KVCache]:
    """Runs layers of a stack; `last_select` is for the last layer of a model of separate trees."""
    if isinstance(layers, tuple):
        from gigpo_jax.models.separate_layers import decode_apart

        return decode_apart(config, span, run_layer, layers, carry, last_select)

    # The cache is the carry of the loop and is updated in place; as input and output of a scan it
    # would be copied.
    def run_stacked(
        index: jax.Array, carry: tuple[jax.Array, KVCache]
    ) -> tuple[jax.Array, KVCache]:
        return run_layer(index, jax.tree.map(lambda leaf: leaf[index], layers), carry)

    return jax.lax.fori_loop(span.start, span.stop, run_stacked, carry)
