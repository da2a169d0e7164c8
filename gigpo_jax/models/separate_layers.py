"""Layers as separate trees, for engines whose devices read them faster than slices of a stack."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gigpo_jax.models.decoder_config import DecoderConfig, LayerSpan
from gigpo_jax.models.layer import Params, Select, select_all
from gigpo_jax.models.on_cpu import transpose_kernels


def split_layers(config: DecoderConfig, layers: Any) -> tuple[Any, ...]:
    """Splits stacked layers into one tree a layer; with `config.for_cpu` in the layout for that."""
    places = range(len(jax.tree.leaves(layers)[0]))
    split = tuple(jax.tree.map(operator.itemgetter(index), layers) for index in places)
    if config.for_cpu:
        split = tuple(map(transpose_kernels, split))
    return split


def run_apart(
    config: DecoderConfig,
    span: LayerSpan,
    run_layer: Callable[..., Any],
    x: jax.Array,
    layers: Sequence[Params],
    routes: jax.Array | None,
    select: Select,
) -> tuple[jax.Array, list[Any]]:
    """Runs layers of separate trees; `select` is for the last layer of the model."""
    results = []
    for index in range(span.start, span.stop):
        number = span.first + index - span.start
        layer_select = select if number == config.num_layers - 1 else select_all
        own_routes = None if routes is None else routes[index]
        x, result = run_layer(x, (layers[index], own_routes, number), layer_select)
        results.append(jax.tree.map(lambda leaf: leaf[None], result))
    return x, results


def decode_apart(
    config: DecoderConfig,
    span: LayerSpan,
    run_layer: Callable[..., Any],
    layers: Sequence[Params],
    carry: Any,
    last_select: Select,
) -> Any:
    """Runs layers over a cache; `last_select` is for the last layer of the model."""
    # A loop of Python: XLA reads the kernels of separate trees in place. Only the last layer may
    # drop tokens: every earlier one makes keys and values of all of them.
    for index in range(span.start, span.stop):
        is_last = span.first + index - span.start == config.num_layers - 1
        carry = run_layer(index, layers[index], carry, last_select if is_last else select_all)
    return carry
