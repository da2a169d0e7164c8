"""The exchange of rows between several hosts."""

from collections.abc import Callable

import numpy as np


def join_rows(rows: np.ndarray, all_hosts: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Joins the rows of all hosts by `exchange.all_hosts`; see `exchange.all_rows`."""
    if rows.dtype == np.bool_:
        return join_rows(rows.astype(np.uint32), all_hosts) != 0
    # An exchange needs one shape on all hosts: their counts come first, then rows that are padded
    # to the largest.
    counts = all_hosts(np.array([len(rows)], np.int32))[:, 0]
    padded = np.zeros((int(counts.max()), *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    # JAX would round 64-bit numbers, so hosts exchange bits.
    host_rows = all_hosts(padded.view(np.uint32)).view(rows.dtype)
    return np.concatenate([block[:count] for block, count in zip(host_rows, counts, strict=True)])
