"""The records of metrics.jsonl from which a resumed run goes on."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

logger = logging.getLogger(__name__)


def read_steps(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The whole records of a metrics.jsonl; null is NaN."""
    for line in path.read_bytes().splitlines(keepends=True):
        step = _step_of_record(line)
        if step >= 0:
            record = json.loads(line)
            del record["step"]
            yield step, {name: np.nan if value is None else value for name, value in record.items()}


def keep_steps(path: Path, last: int) -> None:
    """Cuts a metrics.jsonl after its last whole record of a step <= `last`."""
    end = 0
    position = 0
    last_step = -1
    for line in path.read_bytes().splitlines(keepends=True):
        position += len(line)
        step = _step_of_record(line)
        # Steps increase. A damaged line in the middle is passed over; what follows it still counts.
        if last_step < step <= last:
            end = position
            last_step = step
    if last_step < last:
        logger.warning(
            "%s ends with step %d, its checkpoint is of step %d: the records between are lost",
            path,
            last_step,
            last,
        )
    os.truncate(path, end)


def _step_of_record(line: bytes) -> int:
    """The step of a record; -1 for a torn line."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else -1
    except (ValueError, KeyError, TypeError):
        return -1
