"""Segments -> rows of fixed length: which segment stands in which row, and where.

A segment is one text or, with `batch.share_prefixes`, a tree of several (`learner.trees`).

Shapes: B rows, T tokens in a row, C response tokens in a row.
"""

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.exchange import local_rows
from gigpo_jax.learner.samples import Sample, Text
from gigpo_jax.models.masks import segment_limit

Rows = list[list[int]]  # indices of the segments in each row


class Segment(NamedTuple):
    """Texts that stand together in a row.

    Attributes:
      texts: texts, each with the places of its tokens, [length] i64, from 0 at the first token of
        the segment. Texts of a tree share the places of what they begin with.
      length: tokens of the model's input.
    """

    texts: Sequence[tuple[Text, np.ndarray]]
    length: int

    @property
    def responses(self) -> int:
        """Tokens that carry loss."""
        return sum(len(sample.response_tokens) for text, _ in self.texts for sample in text)


def separate_texts(texts: Sequence[Text]) -> list[Segment]:
    """A segment for each text."""
    lengths = [text[-1].length for text in texts]
    return [Segment([(text, np.arange(n))], n) for text, n in zip(texts, lengths, strict=True)]


class ResponsePlacement(NamedTuple):
    """The place of a sample's response in its row.

    Attributes:
      sample: the sample; its prompt begins where its text does.
      number: number of the response in its row, from 1.
      columns: its tokens among the response tokens of the row.
    """

    sample: Sample
    number: int
    columns: slice


class TextPlacement(NamedTuple):
    """The place of a text in a minibatch's rows.

    Attributes:
      responses: places of its responses, in order; the last sample's input has all others.
      row: index of the row.
      segment: number of its segment in the row, from 1.
      places: [n] i64, places of its tokens in the row.
    """

    responses: tuple[ResponsePlacement, ...]
    row: int
    segment: int
    places: np.ndarray


def row_settings(config: ConfigDict, mesh: Mesh) -> dict[str, Any]:
    """Arguments `row_length`, `rows` and `fit` of `packing.stream_minibatches`.

    Raises:
      InputError: the rows of the config cannot be split evenly.
    """
    batch = config.batch
    rows = local_rows(mesh, batch.rows)
    fit = None
    if batch.fit_rows:
        from gigpo_jax.learner.fitted_rows import make_fit

        fit = make_fit(config, mesh)
    return {"row_length": batch.row_length, "rows": rows, "fit": fit}


def pack_rows(
    lengths: np.ndarray, responses: np.ndarray, row_length: int, response_length: int
) -> Rows:
    """Packs segments into rows: each, longest first, goes to the fullest row that has room for it.

    Args:
      lengths: [n] i, tokens of each segment; segments of length 0 are left out.
      responses: [n] i, tokens of each segment that carry loss.
      row_length: T.
      response_length: C.

    Raises:
      InputError: a sample is longer than a row.
    """
    longest = int(lengths.max(initial=0))
    if longest > row_length:
        raise InputError(
            f"a sample has {longest} tokens",
            key="batch.row_length",
            value=str(row_length),
            fix="make it at least the longest prompt plus the longest response",
        )
    rows: Rows = []
    response_room: list[int] = []  # response tokens that still fit, for each row
    open_rows: list[tuple[int, int]] = []  # (free tokens, row), sorted: the fullest first
    # Ties in the order of segments, so that rows do not depend on the sort algorithm.
    longest_first = np.lexsort((np.arange(len(lengths)), -lengths))
    for segment in longest_first.tolist():
        length = int(lengths[segment])
        response = int(responses[segment])
        # A response without tokens has no loss; a row for it would be padding.
        if length == 0:
            continue
        # The fullest row with room for its tokens, then for its response tokens too.
        # -1 is below every row number: a row with exactly this much room is found too.
        place = bisect.bisect_left(open_rows, (length, -1))
        while place < len(open_rows) and response_room[open_rows[place][1]] < response:
            place += 1
        if place == len(open_rows):
            free = row_length
            row = len(rows)
            rows.append([])
            response_room.append(response_length)
        else:
            free, row = open_rows.pop(place)
        rows[row].append(segment)
        response_room[row] -= response
        # Attention has room for so many segments a row. A row that has them is closed,
        # with tokens free.
        if free > length and len(rows[row]) < segment_limit(row_length):
            bisect.insort(open_rows, (free - length, row))
    return rows


def response_capacity(tokens: int, responses: int, longest_response: int, row_length: int) -> int:
    """Returns C, the response tokens of a row: a fifth more than the average row needs.

    `tokens` and `responses` count tokens of all segments. There are few sizes, so that few shapes
    compile.
    """
    needed = max(longest_response, 1.2 * row_length * responses / max(tokens, 1))
    for eighths in (1, 2, 3, 4, 6):
        size = -(-row_length * eighths // 8)
        if size >= needed:
            return size
    return row_length


def place_texts(segments: Sequence[Segment], rows: Rows) -> list[TextPlacement]:
    """Places texts in rows, their segments side by side, and returns them in the order of rows."""
    placements = []
    for row, members in enumerate(rows):
        start = 0
        first_column = 0
        number = 0
        for position, member in enumerate(members, start=1):
            segment = segments[member]
            for text, places in segment.texts:
                responses = []
                for sample in text:
                    number += 1
                    columns = slice(first_column, first_column + len(sample.response_tokens))
                    responses.append(ResponsePlacement(sample, number, columns))
                    first_column = columns.stop
                placements.append(TextPlacement(tuple(responses), row, position, start + places))
            start += segment.length
    return placements
