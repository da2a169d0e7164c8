"""JSON records of every host."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gigpo_jax.devices.exchange import all_rows


def all_records(
    records: Sequence[dict[str, Any]], join: Callable[[np.ndarray], np.ndarray] = all_rows
) -> list[dict[str, Any]]:
    """Joins JSON records of all hosts, in host order.

    Args:
      records: Records of this host.
      join: Function that joins the rows of all hosts.
    """
    # ASCII without line ends, which JSON escapes: one record a line.
    text = "".join(json.dumps(record) + "\n" for record in records).encode("ascii")
    # Rows are words of 32 bits. Spaces before a record are part of JSON.
    words = np.frombuffer(text + b" " * (-len(text) % 4), np.uint32)
    return [json.loads(line) for line in join(words).tobytes().split(b"\n") if line.strip()]
