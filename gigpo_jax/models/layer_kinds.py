"""Models whose layers have several kinds of attention."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.models.decoder_config import DecoderConfig, LayerSpan
from gigpo_jax.models.rotary import Rotary


def split_spans(config: DecoderConfig) -> list[LayerSpan]:
    """Splits the spans of a model of one stack by kind; layers with a window have another cache."""
    (whole,) = config.layer_spans
    spans: list[LayerSpan] = []
    places: Counter[bool] = Counter()
    for layer, kind in enumerate(config.attention_kinds):
        has_window = kind.window > 0
        if not spans or spans[-1].kind != kind:
            spans.append(LayerSpan(whole.stack, layer, layer, layer, places[has_window], kind))
        places[has_window] += 1
        spans[-1] = spans[-1]._replace(stop=layer + 1)
    return spans


def select_kind(layers: Any, number: jax.Array | int | None) -> tuple[Rotary, Callable[..., Any]]:
    """Returns the rotation angles and the attention of a layer.

    Args:
      layers: the `LayerLoop` of the model.
      number: index of the layer in the model.
    """
    assert number is not None
    kinds = layers.config.attention_kinds
    if isinstance(number, int):
        return layers.angles[kinds[number]], layers.attend_function(kinds[number].window)
    names = list(layers.angles)
    index = jnp.array([names.index(kind) for kind in kinds])[number]
    angles = jax.tree.map(functools.partial(jax.lax.select_n, index), *layers.angles.values())
    windows = list(dict.fromkeys(kind.window for kind in kinds))
    functions = [layers.attend_function(window) for window in windows]
    if len(functions) == 1:
        return angles, functions[0]
    # Kernels take the window as a part of the program.
    choice = jnp.array([windows.index(kind.window) for kind in kinds])[number]
    return angles, functools.partial(jax.lax.switch, choice, functions)
