"""Segments -> rows of fixed length: which segment stands in which row, and where.

A segment is one text: a sample, or several samples of which each continues the one before.

Shapes: B rows, T tokens in a row, C response tokens in a row.
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models.attention import segment_limit

Rows = list[list[int]]  # indices of the segments in each row


class ResponsePlacement(NamedTuple):
    """The place of a sample's response in its row.

    Attributes:
      sample: the sample; its prompt begins where the segment does.
      number: number of the response in its row, from 1.
      columns: its tokens among the response tokens of the row.
    """

    sample: Sample
    number: int
    columns: slice


class SegmentPlacement(NamedTuple):
    """The place of a segment in a minibatch's rows.

    A segment is one text: a sample, or several of which each continues the one before.

    Attributes:
      responses: places of its responses, in order.
      row: index of the row.
      number: number of the segment in its row, from 1.
      start: first token of the segment in the row.
    """

    responses: tuple[ResponsePlacement, ...]
    row: int
    number: int
    start: int

    @property
    def whole(self) -> Sample:
        """The last sample, whose text has all others."""
        return self.responses[-1].sample

    @property
    def prompt_end(self) -> int:
        """The token behind the prompt of the last sample."""
        return self.start + len(self.whole.prompt_tokens)

    @property
    def end(self) -> int:
        """The token behind the segment."""
        return self.start + self.whole.length


def pack_rows(
    lengths: np.ndarray, responses: np.ndarray, row_length: int, response_length: int
) -> Rows:
    """Packs segments into rows by best-fit decreasing.

    Each segment, longest first, goes to the fullest row that it fits into. A row takes at most
    `segment_limit` segments. The result depends on the arguments alone.

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
    """Response tokens of a row, C.

    It is a fifth more than the average row needs. There are few sizes, so that few shapes compile.

    Args:
      tokens: tokens of all segments.
      responses: response tokens of all segments.
      longest_response: largest number of response tokens of a segment.
      row_length: T.
    """
    needed = max(longest_response, 1.2 * row_length * responses / max(tokens, 1))
    for eighths in (1, 2, 3, 4, 6):
        size = -(-row_length * eighths // 8)
        if size >= needed:
            return size
    return row_length


def segment_sizes(segments: Sequence[Sequence[Sample]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of segments, and those that carry loss; [n] i64."""
    # The last sample has the tokens of all others, but one without a response has no length.
    lengths = [max(sample.length for sample in segment) for segment in segments]
    responses = [sum(len(sample.response_tokens) for sample in segment) for segment in segments]
    return np.array(lengths, np.int64), np.array(responses, np.int64)


def place_segments(segments: Sequence[Sequence[Sample]], rows: Rows) -> list[SegmentPlacement]:
    """The places of segments side by side in their rows.

    They are in the order of rows.
    """
    placements = []
    for row, members in enumerate(rows):
        start = 0
        first_column = 0
        number = 0
        for segment, member in enumerate(members, start=1):
            responses = []
            for sample in segments[member]:
                size = len(sample.response_tokens)
                # Without tokens it has nothing to learn from.
                if size == 0:
                    continue
                number += 1
                columns = slice(first_column, first_column + size)
                responses.append(ResponsePlacement(sample, number, columns))
                first_column = columns.stop
            placement = SegmentPlacement(tuple(responses), row, segment, start)
            placements.append(placement)
            start = placement.end
    return placements
