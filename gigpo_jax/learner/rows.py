"""Samples -> rows of fixed length: which sample stands in which row, and where.

Shapes: B rows, T tokens in a row, C response tokens in a row.
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models.attention import segment_limit

Rows = list[list[int]]  # indices of the samples in each row


class SamplePlacement(NamedTuple):
    """The place of a sample in a minibatch's rows.

    Attributes:
      sample: the sample.
      row: index of the row.
      segment: number of the sample in its row, from 1.
      start: first token of the sample in the row.
      response_start: first of its response tokens among those of the row.
    """

    sample: Sample
    row: int
    segment: int
    start: int
    response_start: int

    @property
    def prompt_end(self) -> int:
        """The token behind the prompt."""
        return self.start + len(self.sample.prompt_tokens)

    @property
    def end(self) -> int:
        """The token behind the sample."""
        return self.start + self.sample.length

    @property
    def responses(self) -> slice:
        """The response tokens among those of the row."""
        return slice(self.response_start, self.response_start + len(self.sample.response_tokens))


def pack_rows(
    lengths: np.ndarray, responses: np.ndarray, row_length: int, response_length: int
) -> Rows:
    """Packs samples into rows by best-fit decreasing.

    Each sample, longest first, goes to the fullest row that it fits into. A row takes at most
    `segment_limit` samples. The result depends on the arguments alone.

    Args:
      lengths: [n] i, tokens of each sample; samples of length 0 are left out.
      responses: [n] i, tokens of each sample that carry loss.
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
    # Ties in the order of samples, so that rows do not depend on the sort algorithm.
    longest_first = np.lexsort((np.arange(len(lengths)), -lengths))
    for sample in longest_first.tolist():
        length = int(lengths[sample])
        response = int(responses[sample])
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
        rows[row].append(sample)
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
      tokens: tokens of all samples.
      responses: response tokens of all samples.
      longest_response: response tokens of the longest response.
      row_length: T.
    """
    needed = max(longest_response, 1.2 * row_length * responses / max(tokens, 1))
    for eighths in (1, 2, 3, 4, 6):
        size = -(-row_length * eighths // 8)
        if size >= needed:
            return size
    return row_length


def place_samples(samples: Sequence[Sample], rows: Rows) -> list[SamplePlacement]:
    """The places of samples side by side in their rows.

    They are in the order of rows.
    """
    placements = []
    for row, members in enumerate(rows):
        start = 0
        response_start = 0
        for segment, member in enumerate(members, start=1):
            placement = SamplePlacement(samples[member], row, segment, start, response_start)
            placements.append(placement)
            start = placement.end
            response_start = placement.responses.stop
    return placements
