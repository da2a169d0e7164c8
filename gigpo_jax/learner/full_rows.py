"""Segments -> rows without gaps, for devices, on which padding costs as much as tokens do."""

import numpy as np

from gigpo_jax.models.masks import segment_limit


def fill_rows(
    lengths: np.ndarray, responses: np.ndarray, row_length: int, response_length: int
) -> list[list[int]]:
    """Packs segments as `rows.pack_rows` does, into rows that are as full as they can be.

    The longest segment that is left begins a row. Of the others those are chosen whose lengths add
    up to most (subset sums); what is longer is preferred.
    """
    left = [segment for segment in np.argsort(-lengths, kind="stable").tolist() if lengths[segment]]
    sizes = lengths.tolist()
    rows = []
    while left:
        room = row_length - sizes[left[0]]
        # Bit n of sums[i] is set if some of the first i other segments have n tokens together.
        sums = [1]
        for segment in left[1:]:
            if sums[-1] >> room:
                break
            sums.append((sums[-1] | sums[-1] << sizes[segment]) & ((2 << room) - 1))
        total = sums[-1].bit_length() - 1
        row = [left[0]]
        for index in range(len(sums) - 1, 0, -1):
            if not sums[index - 1] >> total & 1:
                row.insert(1, left[index])
                total -= sizes[left[index]]
        while len(row) > segment_limit(row_length) or responses[row].sum() > response_length:
            row.pop()
        rows.append(row)
        members = set(row)
        left = [segment for segment in left if segment not in members]
    return rows
