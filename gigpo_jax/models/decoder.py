"""Decoders in Flax NNX: the forward pass of packed rows.

The NNX modules name and initialise the parameters and define one layer. All functions take the
parameters explicitly, as a nested dict of arrays; the layers are stacked along a first axis L, or
separate trees (`separate_layers`). Layers without experts in a model with experts have a
stack of their own, "dense_layers". The dtype of the computation may differ from the parameters';
norm statistics, rotary embedding and softmax are always float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gigpo_jax.models.decoder_config import DELTA_LAYERS, LAYERS, DecoderConfig, LayerSpan
from gigpo_jax.models.execution import INPUT
from gigpo_jax.models.execution import Execution as Execution
from gigpo_jax.models.families.family import find_family
from gigpo_jax.models.layer import Params, Select, family_norm, layer_graph, select_all, select_last
from gigpo_jax.models.layers import adapted_linears
from gigpo_jax.models.parameters import abstract_params as abstract_params
from gigpo_jax.models.parameters import active_param_count as active_param_count
from gigpo_jax.models.parameters import init_params as init_params
from gigpo_jax.models.parameters import logical_axes as logical_axes
from gigpo_jax.models.parameters import param_count as param_count
from gigpo_jax.models.rotary import Angles, model_angles

if TYPE_CHECKING:
    from gigpo_jax.models.vision.vision import Features, Images


def output_embedding(config: DecoderConfig, params: Params) -> jax.Array:
    """Returns the output matrix [V, D] in the parameters' dtype: the input embedding, if tied."""
    return params["embed"] if config.tie_word_embeddings else params["head"]


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
    return run_model(
        config, params, tokens, positions, segment_ids, execution, images, routes=routes
    ).hidden


class ModelResult(NamedTuple):
    """Result of `run_model`.

    Attributes:
      hidden: [B, T, D] after the final norm; with `lengths`, of the last tokens, [B, D].
      keys_values: keys and values, each [L, B, T, G, K], of layers with attention; None without
        `lengths`.
      routes: [L', B, T, k] i32, experts of the tokens in each layer that has experts; None unless
        they are kept.
      states: `DeltaState` [M, B, ...] of layers without attention; None without `lengths`, and for
        models that have none.
    """

    hidden: jax.Array
    keys_values: Any
    routes: Any
    states: Any = None


def run_model(
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
) -> ModelResult:
    """Runs `hidden_states`; with `lengths` [B] also returns keys and values, and states."""
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
    x = embed_tokens(config, params, tokens, execution.dtype)
    deep = None
    if images is not None:
        from gigpo_jax.models.vision.vision import insert_images

        assert config.vision is not None
        x, deep = insert_images(
            config.vision, params["vision"], x, images, execution.add_remat, execution.constrain
        )
    if not config.for_cpu:
        x = execution.constrain(x)
    layers = LayerLoop(config, execution, angles, segment_ids, deep, lengths, keeps_routes)
    # The last layer may drop tokens whose experts nobody asks for.
    selects_in_last = isinstance(params[config.layer_spans[0].stack], tuple) and not keeps_routes
    last_select = select if selects_in_last else select_all
    layer_routes = None
    if routes is not None:
        from gigpo_jax.models.expert_numbers import split_routes

        layer_routes = split_routes(config, routes)
    outputs: list[Any] = []
    states: list[Any] = []
    for span in config.layer_spans:
        inputs = (params[span.stack], layer_routes if span.stack == LAYERS else None)
        x, results = layers.run_layers(span, x, *inputs, last_select)
        if span.stack == DELTA_LAYERS:
            states += [result[0] for result in results]
        else:
            outputs += results
    hidden = apply_final_norm(config, params, x)
    keys_values = _join_spans([output[0] for output in outputs])
    chosen = _join_spans([output[1] for output in outputs if output[1] is not None])
    selected = hidden if selects_in_last else select(hidden)
    return ModelResult(selected, keys_values, chosen, _join_spans(states))


@dataclass(frozen=True)
class LayerLoop:
    """Runs layers over packed rows.

    Attributes:
      config, execution, segment_ids: arguments of `hidden_states`.
      angles: result of `model_angles`.
      deep: features of images to add after layers, the second result of `insert_images`, or None.
      lengths: [B] i32, as for `run_model`; None: keys, values and states are no results.
      keeps_routes: whether the experts of tokens are results.
    """

    config: DecoderConfig
    execution: Execution
    angles: Angles
    segment_ids: jax.Array
    deep: jax.Array | None
    lengths: jax.Array | None
    keeps_routes: bool

    def run_layers(
        self, span: LayerSpan, x: jax.Array, layers: Any, routes: jax.Array | None, select: Select
    ) -> tuple[jax.Array, list[Any]]:
        """Runs layers; `select` is for the last layer of a model of separate trees."""
        if not isinstance(layers, tuple):
            return self.run_stacked(span, x, layers, routes)
        from gigpo_jax.models.separate_layers import run_apart

        run_layer = self.layer_function(span, layers)
        return run_apart(self.config, span, run_layer, x, layers, routes, select)

    def run_stacked(
        self, span: LayerSpan, x: jax.Array, stacked: Params, routes: jax.Array | None
    ) -> tuple[jax.Array, list[Any]]:
        """Runs stacked layers in a scan; the results of all layers are one."""
        layers, routes = _slice_span(self.config, span, (stacked, routes))
        length = span.stop - span.start
        is_numbered = self.deep is not None or len(self.angles) > 1
        numbers = jnp.arange(span.first, span.first + length) if is_numbered else None
        unroll = min(self.execution.unroll, length)
        run_layer = self.execution.add_remat(self.layer_function(span, stacked), length // unroll)
        x, result = jax.lax.scan(run_layer, x, (layers, routes, numbers), unroll=unroll)
        return x, [result]

    def layer_function(self, span: LayerSpan, layers: Any) -> Callable[..., tuple[jax.Array, Any]]:
        """Returns the function of one layer of a span, whose parameters it takes."""
        graph = layer_graph(self.config, adapted_linears(layers), span.stack)
        if span.stack == DELTA_LAYERS:
            from gigpo_jax.models.delta_layer import text_mixer

            attend = text_mixer(self.config, self.segment_ids, self.lengths)
        else:
            attend = self.attend_function(span.kind.window)
        angles = self.angles[span.kind]

        def run_layer(
            x: jax.Array,
            inputs: tuple[Params, jax.Array | None, jax.Array | int | None],
            select: Select = select_all,
        ) -> tuple[jax.Array, Any]:
            params, routes, number = inputs
            # The name under which the policy "offload" moves the input of a layer to the host.
            x = checkpoint_name(x, INPUT)
            layer = nnx.merge(graph, params)
            arguments = angles, attend
            if len(self.angles) > 1:
                from gigpo_jax.models.layer_kinds import select_kind

                arguments = select_kind(self, number)
            x, keys_values, chosen = layer(x, *arguments, select, self.execution.experts, routes)
            if self.deep is not None:
                from gigpo_jax.models.vision.vision import add_deep_features

                assert number is not None
                x = add_deep_features(x, self.deep, number, select)
            return self.execution.constrain(x), (keys_values, chosen if self.keeps_routes else None)

        return run_layer

    def attend_function(self, window: int) -> Callable[..., Any]:
        """Returns attention of layers with a window; 0: without."""
        longest = self.execution.max_segment
        length = self.segment_ids.shape[-1]
        if window >= min(longest or length, length):
            window = 0
        if window and self.segment_ids.ndim == 3:
            raise ValueError("segments of trees have no sliding windows")

        def attend(*arrays: jax.Array) -> tuple[jax.Array, Any]:
            mixed = self.execution.attention(
                *arrays, self.segment_ids, max_segment=longest, window=window
            )
            # Training needs no keys and values; as results of the scan they would be stored for all
            # layers.
            return mixed, None if self.lengths is None else arrays[1:]

        return attend


def _slice_span(config: DecoderConfig, span: LayerSpan, stacked: Any) -> Any:
    """Takes the layers of a span out of stacked arrays."""
    # A model of one kind of layers has one span, and nothing is sliced.
    if len(config.layer_spans) == 1:
        return stacked
    return jax.tree.map(lambda leaf: leaf[span.start : span.stop], stacked)


def _join_spans(results: Sequence[Any]) -> Any:
    """Joins the stacked results of spans; None if there are no results."""
    if len(results) < 2:
        return results[0] if results else None
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *results)


def embed_tokens(
    config: DecoderConfig, params: Params, tokens: jax.Array, dtype: Any = None
) -> jax.Array:
    """Embeds tokens: [...] i32 -> [..., D] in `dtype`; None: the parameters'."""
    if config.for_cpu:
        from gigpo_jax.models.on_cpu import gather_rows

        x = gather_rows(params["embed"], tokens)
    else:
        x = params["embed"][tokens]
    x = x.astype(dtype or x.dtype)
    if find_family(config.model_type).scales_embeddings:
        # The factor is rounded to the dtype, as in the published code.
        x = x * jnp.asarray(config.hidden_size**0.5, x.dtype)
    return x


def apply_final_norm(config: DecoderConfig, params: Params, x: jax.Array) -> jax.Array:
    """Applies the norm after the last layer, [..., D] -> [..., D]."""
    # Only the structure of the module is made; its parameters come from the argument.
    norm = nnx.eval_shape(lambda: family_norm(config, config.hidden_size, dtype=x.dtype))
    return nnx.merge(nnx.graphdef(norm), params["final_norm"])(x)


def score_tokens(config: DecoderConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """Scores the vocabulary for hidden states, [..., D] -> [..., V] f32; -inf for unused ids."""
    # float32 scores in every dtype: log-probabilities are differences of scores, and bfloat16 has 8
    # significant bits.
    matrix = output_embedding(config, params).astype(hidden.dtype)
    if config.for_cpu:
        from gigpo_jax.models.on_cpu import multiply_rows

        scores = multiply_rows(hidden, matrix)
    else:
        scores = jnp.einsum("...d,vd->...v", hidden, matrix, preferred_element_type=jnp.float32)
    if not config.num_tokens:
        return scores
    return jnp.where(jnp.arange(len(matrix)) < config.num_tokens, scores, -jnp.inf)
