"""Decoders in Flax NNX (Qwen2, Qwen3, Qwen3-MoE, Llama): packed rows and a static KV cache.

The NNX modules name and initialise the parameters and define one layer. All functions take the
parameters explicitly, as a nested dict of arrays; the layers are stacked along a first axis L
(`for_cpu`: one tree a layer). Layers without experts in a model with experts have a stack of their
own, "dense_layers". The dtype of the computation may differ from that of the parameters;
norm statistics, rotary embedding and softmax are always float32.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gigpo_jax.models import on_cpu
from gigpo_jax.models.attention import attention, cached_attention
from gigpo_jax.models.cache import (
    KVCache,
    route_dtype,
    write_prompt_routes,
    write_prompts,
    write_token_routes,
    write_tokens,
)
from gigpo_jax.models.decoder_config import DENSE_LAYERS, LAYERS, DecoderConfig, LayerRun
from gigpo_jax.models.execution import INPUT, Experts
from gigpo_jax.models.execution import REMAT_POLICIES as REMAT_POLICIES
from gigpo_jax.models.execution import Execution as Execution
from gigpo_jax.models.layers import Linear, RMSNorm, ValueHead, adapted_linears, draw_normal
from gigpo_jax.models.rotary import Rotary, rotary_angles, rotate

if TYPE_CHECKING:
    from gigpo_jax.models.vision.vision import Features, Images

HEAD_NORMS = ("qwen3", "qwen3_moe")  # model types with norms of queries and keys
Params = dict[str, Any]
Select = Callable[[jax.Array], jax.Array]  # selects tokens of an array


def select_all(x: jax.Array) -> jax.Array:
    """Selects all tokens of an array."""
    return x


def select_last(lengths: jax.Array) -> Select:
    """Selects the last token of each row.

    x [B, T, D], `lengths` [B] -> [B, D].
    """
    # A row that is not filled has length 0; its result is not used.
    index = jnp.maximum(lengths - 1, 0)[:, None, None]
    return lambda x: jnp.take_along_axis(x, index, axis=1)[:, 0]


class Layer(nnx.Module):
    """One decoder layer.

    Attention is an argument, so training, prefill and decoding share the layer. The linear layers
    in `adapted` have a low-rank pair (`models.lora`). In a model with experts the layers of the
    stack "layers" have a router and experts, those of "dense_layers" one SwiGLU block.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: Any,
        rngs: nnx.Rngs,
        adapted: Collection[str] = (),
        stack: str = LAYERS,
    ):
        width = config.hidden_size
        inner = config.intermediate_size
        head_dim = config.head_dim
        query_width = config.num_heads * head_dim
        kv_width = config.num_kv_heads * head_dim

        def make_linear(name: str, inputs: int, outputs: int, bias: bool = False) -> Linear:
            return Linear(
                inputs,
                outputs,
                bias=bias,
                dtype=dtype,
                rngs=rngs,
                adapted=name in adapted,
                for_cpu=config.for_cpu,
            )

        def make_norm(size: int) -> RMSNorm:
            return RMSNorm(size, eps=config.rms_norm_eps, dtype=dtype)

        bias = config.model_type == "qwen2"
        self.head_dim = head_dim
        self.for_cpu = config.for_cpu
        # The order of these lines is the order in which random keys are drawn.
        self.attention_norm = make_norm(width)
        self.query = make_linear("query", width, query_width, bias)
        self.key = make_linear("key", width, kv_width, bias)
        self.value = make_linear("value", width, kv_width, bias)
        if config.model_type in HEAD_NORMS:
            self.query_norm = make_norm(head_dim)
            self.key_norm = make_norm(head_dim)
        self.out = make_linear("out", query_width, width)
        self.mlp_norm = make_norm(width)
        if config.experts is not None and stack == LAYERS:
            from gigpo_jax.models.experts import ExpertKernels, Router

            experts = config.experts
            make_kernels = functools.partial(ExpertKernels, dtype=dtype, rngs=rngs)
            self.router = Router(width, experts, dtype=dtype, rngs=rngs)
            self.expert_gate = make_kernels((experts.count, width, experts.width))
            self.expert_up = make_kernels((experts.count, width, experts.width))
            self.expert_down = make_kernels((experts.count, experts.width, width))
        else:
            self.gate = make_linear("gate", width, inner)
            self.up = make_linear("up", width, inner)
            self.down = make_linear("down", inner, width)

    def __call__(
        self,
        x: jax.Array,
        angles: Rotary,
        attend: Callable,
        select: Select = select_all,
        experts: Experts | None = None,
        routes: jax.Array | None = None,
    ) -> tuple[jax.Array, Any, jax.Array | None]:
        """Runs the layer.

        Args:
          x: [..., D] residual stream in the compute dtype.
          angles: result of `model_angles`.
          attend: function (query [..., H, K], key [..., G, K], value [..., G, K]) -> (mixed values
            [..., H, K], any second result).
          select: selection of the tokens that everything after attention is computed for; it takes
            the residual stream and the mixed values [..., H * K].
          experts: function for the experts; None: `experts.apply_experts`.
          routes: experts of each selected token [..., k] in place of those that the router would
            choose; None: the router chooses.

        Returns:
          The residual stream [..., D] of the selected tokens, the second result of `attend`, and
          the experts of these tokens [..., k] i32, None for a layer without any.
        """
        y = self.attention_norm(x)
        query = self._split_heads(self.query(y))
        key = self._split_heads(self.key(y))
        value = self._split_heads(self.value(y))
        # Before the rotation, as in the published Qwen3: the norm's scale differs along the head,
        # so the two do not commute.
        if hasattr(self, "query_norm"):
            query = self.query_norm(query)
            key = self.key_norm(key)
        mixed, extra = attend(rotate(query, angles), rotate(key, angles), value)
        # Keys and values of all tokens are made by now; what follows works on each token alone.
        x = select(x) + self.out(select(mixed.reshape(*x.shape[:-1], -1)))

        y = self.mlp_norm(x)
        if hasattr(self, "router"):
            ids, gates = self.router(y, routes)
            kernels = (self.expert_gate, self.expert_up, self.expert_down)
            from gigpo_jax.models.experts import apply_experts

            apply = experts or apply_experts
            y = apply(y, ids, gates, *(matrix.kernel[...].astype(x.dtype) for matrix in kernels))
            return x + y, extra, ids
        # In bfloat16 XLA's CPU backend would convert and round at every operation of the fusion.
        gate = self.gate(y).astype(jnp.float32 if self.for_cpu else x.dtype)
        return x + self.down((jax.nn.silu(gate) * self.up(y)).astype(x.dtype)), extra, None

    def _split_heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)


class Decoder(nnx.Module):
    """The whole parameter tree.

    It has the embedding, stacked layers, the final norm and, if untied, a head.
    """

    def __init__(self, config: DecoderConfig, *, dtype: Any, rngs: nnx.Rngs):
        def make_layers(stack: str) -> Layer:
            @nnx.split_rngs(splits=len(config.layer_numbers(stack)))
            @nnx.vmap(in_axes=0)
            def make_stack(rngs: nnx.Rngs) -> Layer:
                return Layer(config, dtype=dtype, rngs=rngs, stack=stack)

            return make_stack(rngs)

        embedding_shape = (config.vocab_size, config.hidden_size)
        self.embed = nnx.Param(draw_normal(rngs, embedding_shape, dtype))
        self.layers = make_layers(LAYERS)
        if config.layer_numbers(DENSE_LAYERS):
            self.dense_layers = make_layers(DENSE_LAYERS)
        self.final_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)
        if config.value_head:
            self.value_head = ValueHead(config.hidden_size, config.value_head, dtype=dtype)
        elif not config.tie_word_embeddings:
            self.head = nnx.Param(draw_normal(rngs, embedding_shape, dtype))
        if config.vision is not None:
            from gigpo_jax.models.vision.vision import VisionTower

            # Drawn last, so that the decoder of a seed is the same with and without a tower.
            self.vision = VisionTower(config.vision, config.hidden_size, dtype=dtype, rngs=rngs)


@functools.partial(jax.jit, static_argnames=("config", "dtype"))
def init_params(config: DecoderConfig, key: jax.Array, dtype: Any = jnp.float32) -> Params:
    """Draws random parameters.

    Matrices have standard deviation 0.02, biases are 0 and norm scales 1.

    Returns:
      A nested dict of arrays; under `layers` every leaf has a first axis of length L.
    """
    model = Decoder(config, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(params=key))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def abstract_params(config: DecoderConfig, dtype: Any = jnp.float32) -> Params:
    """Shapes and dtypes of `init_params`, without allocating anything."""
    # A lambda, because `eval_shape` would take config and dtype for arrays.
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0), dtype))


def param_count(config: DecoderConfig) -> int:
    """Number of parameters; a tied embedding counts once."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))


def active_param_count(config: DecoderConfig) -> int:
    """Number of parameters that a token goes through."""
    count = param_count(config)
    if config.experts is None:
        return count
    idle_experts = len(config.layer_numbers(LAYERS)) * config.experts.count - config.route_width
    return count - idle_experts * 3 * config.hidden_size * config.experts.width


def logical_axes(config: DecoderConfig) -> Params:
    """Returns axis names of every parameter, for sharding.

    The result is a tree like the parameters. The names are "layers", "vocab", "embed", "heads"
    (H x K, one head after the other), "kv_heads" (G x K), "head" (K), "mlp", "value", and of
    experts "expert" (E), "expert_mlp" and "router" (E, scores of a router).
    """
    axes: Params = {
        "embed": ("vocab", "embed"),
        "layers": _layer_axes(config.model_type, has_experts=config.experts is not None),
        "final_norm": {"scale": ("embed",)},
    }
    if config.layer_numbers(DENSE_LAYERS):
        axes[DENSE_LAYERS] = _layer_axes(config.model_type, has_experts=False)
    if config.vision is not None:
        from gigpo_jax.models.vision.vision import logical_axes as vision_axes

        axes["vision"] = vision_axes(config.vision)
    if config.value_head:
        axes["value_head"] = {"kernel": ("embed", "value"), "bias": ("value",)}
    elif not config.tie_word_embeddings:
        axes["head"] = ("vocab", "embed")
    return axes


def _layer_axes(model_type: str, *, has_experts: bool) -> Params:
    axes: Params = {"out": {"kernel": ("layers", "heads", "embed")}}
    for name, outputs in {"query": "heads", "key": "kv_heads", "value": "kv_heads"}.items():
        axes[name] = {"kernel": ("layers", "embed", outputs)}
        if model_type == "qwen2":
            axes[name]["bias"] = ("layers", outputs)
    if has_experts:
        axes["router"] = {"kernel": ("layers", "embed", "router")}
        for name in ("expert_gate", "expert_up"):
            axes[name] = {"kernel": ("layers", "expert", "embed", "expert_mlp")}
        axes["expert_down"] = {"kernel": ("layers", "expert", "expert_mlp", "embed")}
    else:
        for name in ("gate", "up"):
            axes[name] = {"kernel": ("layers", "embed", "mlp")}
        axes["down"] = {"kernel": ("layers", "mlp", "embed")}
    for name in ("attention_norm", "mlp_norm"):
        axes[name] = {"scale": ("layers", "embed")}
    if model_type in HEAD_NORMS:
        for name in ("query_norm", "key_norm"):
            axes[name] = {"scale": ("layers", "head")}
    return axes


def output_embedding(config: DecoderConfig, params: Params) -> jax.Array:
    """Returns the output matrix [V, D] in the parameters' dtype.

    It is the input embedding, if tied.
    """
    return params["embed"] if config.tie_word_embeddings else params["head"]


def predict_values(params: Params, hidden: jax.Array) -> jax.Array:
    """Applies the value head `params["value_head"]` to hidden states.

    [..., D] -> [...] f32, or [..., values] for several values a token.
    """
    width, count = params["value_head"]["kernel"].shape
    # Only the structure of the module is made, no array.
    head = nnx.eval_shape(lambda: ValueHead(width, count, dtype=jnp.float32))
    return nnx.merge(nnx.graphdef(head), params["value_head"])(hidden)


def hidden_states(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    execution: Execution = Execution(),
    images: "Images | None" = None,
    routes: jax.Array | None = None,
) -> jax.Array:
    """Runs the model up to the final norm.

    Args:
      config: model shape.
      params: parameter tree of `init_params`.
      tokens: [B, T] i32.
      positions: [B, T] i32, from 0 in each segment; None counts 0..T-1. [3, B, T] for texts with
        images.
      segment_ids: [B, T] i32, 0 for padding, segments from 1; None is one segment a row. [B, 2, T]
        for trees, see `attention`.
      execution: dtype, rematerialisation and sharding.
      images: images of the texts, for a model with a vision tower; None for none.
      routes: [B, T, R] integers, experts of each token in place of the routers' choices: k for
        each layer with experts, R = L' k; None: the routers choose.

    Returns:
      [B, T, D] in the compute dtype.
    """
    return _run_model(
        config, params, tokens, positions, segment_ids, execution, images, routes=routes
    ).hidden


def chosen_experts(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    execution: Execution = Execution(),
    routes: jax.Array | None = None,
) -> jax.Array:
    """Returns the experts that tokens go through.

    Arguments are those of `hidden_states`; the result [B, T, R] i32 is as its `routes`.
    """
    result = _run_model(
        config,
        params,
        tokens,
        positions,
        segment_ids,
        execution,
        None,
        routes=routes,
        keeps_routes=True,
    )
    return merge_routes(result.routes)


def merge_routes(routes: jax.Array) -> jax.Array:
    """Joins the experts of tokens in all layers.

    [L', ..., k] -> [..., L' k].
    """
    moved = jnp.moveaxis(routes, 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def logits(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    *,
    dtype: Any = None,
) -> jax.Array:
    """Scores every next token.

    [B, T] -> [B, T, V] f32; arguments as for `hidden_states`.
    """
    hidden = hidden_states(config, params, tokens, positions, segment_ids, Execution(dtype))
    return score_tokens(config, params, hidden)


def init_cache(
    config: DecoderConfig,
    slots: int,
    length: int,
    dtype: Any = jnp.float32,
    *,
    keeps_routes: bool = False,
) -> KVCache:
    """Makes an empty cache for `slots` sequences.

    Each has at most `length` tokens. With `keeps_routes` the cache of a model with experts has
    room for those of every token.
    """
    shape = (config.num_layers, slots, config.num_kv_heads, length, config.head_dim)
    routes = None
    if keeps_routes and config.experts is not None:
        depth = len(config.layer_numbers(LAYERS))
        routes_shape = (depth, slots, 1, length, config.experts.per_token)
        routes = jnp.zeros(routes_shape, route_dtype(config.experts.count))
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), routes)


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
      config: model shape.
      params: parameter tree of `init_params`.
      cache: cache; updated in place if donated.
      tokens: [B, T] i32, each prompt padded on the right; T at most the cache's length.
      lengths: [B] i32, tokens of each prompt without padding.
      slots: [B] i32, the slot of each prompt; a row with S or more is dropped.
      positions: positions, as for `hidden_states`.
      images: images, as for `hidden_states`.
      kernels: attention kernels, as for `attention.attention`.
      experts: function for the experts.

    Returns:
      The logits [B, V] f32 after the last token of each prompt, and the cache.
    """
    segment_ids = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
    # No other setting: prompts are read in the parameters' dtype, without gradients.
    execution = Execution(attention=functools.partial(attention, kernels=kernels), experts=experts)
    result = _run_model(
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
    keys, values = result.keys_values
    cache = write_prompts(cache, keys, values, slots)
    if cache.routes is not None:
        cache = write_prompt_routes(cache, result.routes, slots)
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
      config: model shape.
      params: parameter tree of `init_params`.
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

    def attend(
        index: jax.Array, cache: KVCache, query: jax.Array, key: jax.Array, value: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        # Written first, because a token attends to itself too.
        cache = write_tokens(cache, key, value, index, positions)
        mixed = cached_attention(query, cache.key, cache.value, index, positions, kernels)
        return mixed, cache

    def write_routes(index: jax.Array, cache: KVCache, routes: jax.Array) -> KVCache:
        return write_token_routes(cache, routes, index, positions)

    x = embed_tokens(config, params, tokens)
    x, cache = run_layers(config, params, cache, x, angles, attend, write_routes, experts=experts)
    return score_tokens(config, params, apply_final_norm(config, params, x)), cache


def run_layers(
    config: DecoderConfig,
    params: Params,
    cache: KVCache,
    x: jax.Array,
    angles: Rotary,
    attend: Callable,
    write_routes: Callable,
    select: Select = select_all,
    experts: Experts | None = None,
    deep: jax.Array | None = None,
) -> tuple[jax.Array, KVCache]:
    """Runs all layers over a cache.

    Args:
      config: model shape.
      params: parameter tree of `init_params`.
      cache: the cache.
      x: [..., D] embeddings.
      angles: result of `model_angles`.
      attend: function (layer index, cache, query, key, value) -> (mixed values, cache).
      write_routes: function (index of the layer among those with experts, cache, experts of the
        tokens [..., k]) -> cache; called if the cache has room for them.
      select: selection of the tokens in the result.
      experts: function for the experts.
      deep: second result of `insert_images`.

    Returns:
      The residual stream [..., D] of the selected tokens, and the cache.
    """

    # `index` counts the layers of the stack, `number` those of the whole model.
    def run_layer(
        index: jax.Array | int,
        number: jax.Array | int,
        layer: Layer,
        cache: KVCache,
        x: jax.Array,
        layer_select: Select,
    ) -> tuple[jax.Array, KVCache]:
        attend_layer = functools.partial(attend, number, cache)
        x, cache, routes = layer(x, angles, attend_layer, layer_select, experts)
        x = _add_deep_features(x, deep, number, layer_select)
        if routes is not None and cache.routes is not None:
            cache = write_routes(index, cache, routes)
        return x, cache

    for run in config.layer_runs:
        layers = params[run.stack]
        graph = _layer_graph(config, adapted_linears(layers), run.stack)
        if config.for_cpu:
            # A loop of Python: the layers are separate trees, whose kernels XLA reads in place.
            for index in range(run.start, run.stop):
                number = run.first + index - run.start
                # Only the last layer may drop tokens: every earlier one makes keys and values of
                # all of them. The experts of dropped tokens would not be known.
                is_last = number == config.num_layers - 1 and cache.routes is None
                layer_select = select if is_last else select_all
                layer = nnx.merge(graph, layers[index])
                x, cache = run_layer(index, number, layer, cache, x, layer_select)
            continue

        # The cache is the carry of the loop and is updated in place; as input and output of a scan
        # it would be copied.
        def run_stacked(
            index: jax.Array,
            carry: tuple[jax.Array, KVCache],
            run: LayerRun = run,
            layers: Params = layers,
            graph: Any = graph,
        ) -> tuple[jax.Array, KVCache]:
            x, cache = carry
            layer = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[index], layers))
            number = index + (run.first - run.start)
            return run_layer(index, number, layer, cache, x, select_all)

        x, cache = jax.lax.fori_loop(run.start, run.stop, run_stacked, (x, cache))
    if config.for_cpu and cache.routes is None:
        return x, cache
    return select(x), cache


def _add_deep_features(
    x: jax.Array,
    deep: jax.Array | None,
    layer: jax.Array | int | None,
    select: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Adds the features that belong behind a decoder layer.

    Args:
      x: result of the layer, of the tokens that `select` selects.
      deep: [1 + layers with features, B, T, D], zeros in the last row; None: there are none.
      layer: index of the layer.
      select: selection of tokens of [B, T, D].
    """
    if deep is None or layer is None:
        return x
    return x + select(deep[jnp.minimum(layer, len(deep) - 1)])


def model_angles(config: DecoderConfig, positions: jax.Array, axes: Sequence[int] = ()) -> Rotary:
    """Returns rotation angles for heads of the model.

    Arguments as for `rotary_angles`.
    """
    angles = rotary_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling, axes)
    return jax.tree.map(on_cpu.compute_once, angles) if config.for_cpu else angles


class _ModelResult(NamedTuple):
    """Result of `_run_model`.

    Attributes:
      hidden: [B, T, D] after the final norm; with `lengths` those of the last tokens, [B, D].
      keys_values: keys and values, each [L, B, T, G, K]; None without `lengths`.
      routes: [L', B, T, k] i32, experts of the tokens in each layer that has experts; None unless
        they are kept.
    """

    hidden: jax.Array
    keys_values: Any
    routes: Any


def _run_model(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None,
    segment_ids: jax.Array | None,
    execution: Execution,
    images: "Images | Features | None",
    lengths: jax.Array | None = None,
    *,
    routes: jax.Array | None = None,
    keeps_routes: bool = False,
) -> _ModelResult:
    """Runs `hidden_states`; with `lengths` [B] also returns keys and values."""
    dtype = params["embed"].dtype if execution.dtype is None else jnp.dtype(execution.dtype)
    if positions is None:
        positions = jnp.arange(tokens.shape[1])[None]
    if segment_ids is None:
        # 1, because 0 would be padding.
        segment_ids = jnp.ones(tokens.shape, jnp.int32)
    # Texts with images have three axes of positions. On a text alone the three are equal, and plain
    # positions [B, T] give the same angles.
    axes: Sequence[int] = ()
    if config.vision is not None and positions.ndim == 3:
        axes = config.vision.frequency_axes
    angles = model_angles(config, positions, axes)
    select = select_all if lengths is None else select_last(lengths)
    # The last layer may drop tokens whose experts nobody asks for.
    selects_in_last = config.for_cpu and not keeps_routes

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, Any]:
        mixed = execution.attention(
            query, key, value, segment_ids, max_segment=execution.max_segment
        )
        # Training needs no keys and values; as results of the scan they would be stored for all
        # layers.
        return mixed, None if lengths is None else (key, value)

    def add_remat(function: Callable) -> Callable:
        if execution.remat == "none":
            return function
        # In the scan over layers nothing can be merged across the loop, so the barriers of
        # prevent_cse would only cost time.
        return jax.checkpoint(function, policy=REMAT_POLICIES[execution.remat], prevent_cse=False)

    x = embed_tokens(config, params, tokens).astype(dtype)
    deep = None
    if images is not None:
        from gigpo_jax.models.vision.vision import insert_images

        assert config.vision is not None
        x, deep = insert_images(
            config.vision, params["vision"], x, images, add_remat, execution.constrain
        )
    layer_routes = None if routes is None else _split_routes(config, routes)
    if not config.for_cpu:
        x = execution.constrain(x)
    results = []
    for run in config.layer_runs:
        graph = _layer_graph(config, adapted_linears(params[run.stack]), run.stack)

        def run_layer(
            x: jax.Array,
            inputs: tuple[Params, jax.Array | None, jax.Array | int | None],
            layer_select: Select = select_all,
            graph: Any = graph,
        ) -> tuple[jax.Array, Any]:
            layer, replayed, number = inputs
            # The name under which the policy "offload" moves the input of a layer to the host.
            x = checkpoint_name(x, INPUT)
            x, keys_values, chosen = nnx.merge(graph, layer)(
                x, angles, attend, layer_select, execution.experts, replayed
            )
            x = _add_deep_features(x, deep, number, layer_select)
            return execution.constrain(x), (keys_values, chosen if keeps_routes else None)

        replayed = layer_routes if run.stack == LAYERS else None
        if config.for_cpu:
            for index in range(run.start, run.stop):
                number = run.first + index - run.start
                is_last = number == config.num_layers - 1
                layer_select = select if is_last and selects_in_last else select_all
                own_routes = None if replayed is None else replayed[index]
                inputs = (params[run.stack][index], own_routes, number)
                x, result = run_layer(x, inputs, layer_select)
                results.append(jax.tree.map(lambda leaf: leaf[None], result))
        else:
            sliced = _slice_run(config, run, (params[run.stack], replayed))
            length = run.stop - run.start
            unroll = min(execution.unroll, length)
            numbers = None if deep is None else jnp.arange(run.first, run.first + length)
            x, result = jax.lax.scan(add_remat(run_layer), x, (*sliced, numbers), unroll=unroll)
            results.append(result)
    hidden = apply_final_norm(config, params, x)
    keys_values = _join_runs([result[0] for result in results])
    chosen = _join_runs([result[1] for result in results if result[1] is not None])
    return _ModelResult(hidden if selects_in_last else select(hidden), keys_values, chosen)


def _split_routes(config: DecoderConfig, routes: jax.Array) -> jax.Array:
    """Splits the experts of tokens by layer.

    [B, T, L' k] -> [L', B, T, k].
    """
    assert config.experts is not None
    split = routes.reshape(*routes.shape[:-1], -1, config.experts.per_token)
    return jnp.moveaxis(split, -2, 0)


def _slice_run(config: DecoderConfig, run: LayerRun, stacked: Any) -> Any:
    """Takes the layers of a run out of stacked arrays."""
    # A model of one kind of layers has one run, and nothing is sliced.
    if len(config.layer_runs) == 1:
        return stacked
    return jax.tree.map(lambda leaf: leaf[run.start : run.stop], stacked)


def _join_runs(results: Sequence[Any]) -> Any:
    """Joins the stacked results of runs.

    None where there are none.
    """
    if len(results) < 2:
        return results[0] if results else None
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *results)


def embed_tokens(config: DecoderConfig, params: Params, tokens: jax.Array) -> jax.Array:
    """Embeds tokens: [...] i32 -> [..., D]."""
    if config.for_cpu:
        return on_cpu.gather_rows(params["embed"], tokens)
    return params["embed"][tokens]


def apply_final_norm(config: DecoderConfig, params: Params, x: jax.Array) -> jax.Array:
    """Applies the norm after the last layer.

    [..., D] -> [..., D].
    """
    # Only the structure of the module is made; its parameters are those of the argument.
    norm = nnx.eval_shape(
        lambda: RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=x.dtype)
    )
    return nnx.merge(nnx.graphdef(norm), params["final_norm"])(x)


def score_tokens(config: DecoderConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """Scores all tokens of the vocabulary.

    Hidden states [..., D] -> [..., V] f32, -inf for ids without a token.
    """
    # float32 scores in every dtype: log-probabilities are differences of scores, and bfloat16 has 8
    # significant bits.
    matrix = output_embedding(config, params).astype(hidden.dtype)
    if config.for_cpu:
        scores = on_cpu.multiply_rows(hidden, matrix)
    else:
        scores = jnp.einsum("...d,vd->...v", hidden, matrix, preferred_element_type=jnp.float32)
    if not config.num_tokens:
        return scores
    return jnp.where(jnp.arange(len(matrix)) < config.num_tokens, scores, -jnp.inf)


@functools.cache
def _layer_graph(config: DecoderConfig, adapted: tuple[str, ...], stack: str) -> Any:
    """Returns the graph of a `Layer`.

    `nnx.merge` combines it with the parameters of one layer.
    """
    # Dtype and keys have no effect: the graph is the structure alone. It is cached, because every
    # trace of a model asks for it.
    make_layer = functools.partial(Layer, config, dtype=jnp.float32, adapted=adapted, stack=stack)
    return nnx.graphdef(nnx.eval_shape(lambda: make_layer(rngs=nnx.Rngs(0))))
