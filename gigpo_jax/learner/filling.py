"""Placed texts -> the arrays of a minibatch.

Shapes: M microbatches, B rows, T tokens in a row, C response tokens in a row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gigpo_jax.learner.rows import TextPlacement
from gigpo_jax.rl.types import StepBatch


class BatchShape(NamedTuple):
    """Sizes M, B, T and C of a minibatch's arrays.

    Attributes:
      route_width: experts that a token goes through in all layers; 0: they are not given.
      route_bytes: bytes of the number of an expert.
      has_trees: whether texts of a segment share what they begin with.
    """

    microbatches: int
    rows: int
    tokens: int
    responses: int
    route_width: int
    route_bytes: int
    has_trees: bool


def fill_batch(
    placements: Sequence[TextPlacement],
    shape: BatchShape,
    microbatches: int,
    fields: Mapping[str, Any],
) -> StepBatch:
    """Writes placed texts into arrays, of which the first `microbatches` are computed."""
    batch = _empty_batch(shape, microbatches, fields)
    # A field may be a pytree, such as `ValueTargets`: its leaves are written in their order.
    field_arrays = jax.tree.leaves({name: getattr(batch, name) for name in fields})
    for text in placements:
        _fill_text(batch, text)
        for sample, _, columns in text.responses:
            values = jax.tree.leaves({name: sample.fields[name] for name in fields})
            for array, value in zip(field_arrays, values, strict=True):
                array[text.row, columns] = value

    def split_rows(array: np.ndarray) -> np.ndarray:
        if not array.ndim:
            return array
        return array.reshape(shape.microbatches, shape.rows, *array.shape[1:])

    return jax.tree.map(split_rows, batch)


def _empty_batch(shape: BatchShape, microbatches: int, fields: Mapping[str, Any]) -> StepBatch:
    """Arrays of zeros, with one axis [M B] in place of M and B."""
    rows = shape.microbatches * shape.rows

    tokens = np.zeros((rows, shape.tokens), np.int32)

    def response_array(dtype: Any) -> np.ndarray:
        return np.zeros((rows, shape.responses), dtype)

    routes = None
    if shape.route_width:
        routes = np.zeros((rows, shape.tokens, shape.route_width), f"u{shape.route_bytes}")
    return StepBatch(
        tokens=tokens,
        positions=tokens.copy(),
        segment_ids=np.stack([tokens] * 2, 1) if shape.has_trees else tokens.copy(),
        response_index=response_array(np.int32),
        responses=response_array(np.int32),
        targets=response_array(np.int32),
        behaviour=response_array(np.float32),
        advantage=response_array(np.float32),
        weight=response_array(np.float32),
        # Data and not a shape: programs loop up to it, so its value compiles nothing anew.
        microbatches=np.int32(microbatches),
        routes=routes,
        **jax.tree.map(response_array, dict(fields)),
    )


def _fill_text(batch: StepBatch, text: TextPlacement) -> None:
    """Writes the tokens of a text and its responses into the arrays of `_empty_batch`."""
    row = text.row
    places = text.places
    batch.tokens[row, places] = text.responses[-1].sample.input_tokens
    # Each text counts from 0 and each segment has a number of its own: packed or alone, it is the
    # same input.
    batch.positions[row, places] = np.arange(len(places))
    if batch.segment_ids.ndim == 3:
        batch.segment_ids[row, 0, places] = text.segment
        # What a text shares with later ones ends where the last of them does.
        batch.segment_ids[row, 1, places] = places[-1] + 1
    else:
        batch.segment_ids[row, places] = text.segment
    if batch.routes is not None:
        # Earlier steps last: a token keeps the experts with which it was sampled, also where a
        # later step read it again.
        for sample, _, _ in reversed(text.responses):
            assert sample.routes is not None, "experts are given for some samples only"
            batch.routes[row, places[: sample.length]] = sample.routes
    for sample, number, columns in text.responses:
        # The last prompt token predicts the first response token.
        response_places = places[len(sample.prompt_tokens) - 1 : sample.length]
        batch.response_index[row, columns] = response_places
        batch.responses[row, columns] = number
        batch.targets[row, columns] = sample.response_tokens
        batch.behaviour[row, columns] = sample.logprobs
        batch.advantage[row, columns] = sample.advantage
        batch.weight[row, columns] = sample.weight
