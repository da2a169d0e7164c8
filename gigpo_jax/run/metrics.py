"""Where a run's numbers go: metrics.jsonl, TensorBoard and the console; and the timers that make some of them."""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Timers:
    """Adds up wall-clock seconds by name."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Adds the duration of the block to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The seconds since the last `take`, as `time/<name>`."""
        seconds, self._seconds = self._seconds, {}
        return {f"time/{name}": value for name, value in seconds.items()}


class MetricsWriter:
    """Writes one record an iteration; a resumed run cuts off what was written after its checkpoint."""

    def __init__(self, workdir: Path, *, position: int = 0, purge_step: int | None = None) -> None:
        """Opens the writers.

        Args:
          workdir: holds metrics.jsonl and tensorboard/; made if needed.
          position: bytes of metrics.jsonl to keep; the rest belongs to iterations that will be done again.
          purge_step: TensorBoard hides what an earlier run wrote from this step on; None for a new run.
        """
        from tensorboardX import SummaryWriter

        workdir.mkdir(parents=True, exist_ok=True)
        path = workdir / "metrics.jsonl"
        path.touch()
        os.truncate(path, min(position, path.stat().st_size))
        self._file = path.open("a", encoding="utf-8")
        kwargs = {} if purge_step is None else {"purge_step": purge_step}
        self._board = SummaryWriter(str(workdir / "tensorboard"), **kwargs)

    @property
    def position(self) -> int:
        """Bytes of metrics.jsonl written so far; a checkpoint records it."""
        self._file.flush()
        return self._file.tell()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a step under their names in DESIGN's order-free namespace, such as `policy/kl`."""
        numbers = {name: float(value) for name, value in sorted(values.items())}
        finite = {name: value if np.isfinite(value) else None for name, value in numbers.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        for name, value in numbers.items():
            self._board.add_scalar(name, value, step)

    def histogram(self, step: int, name: str, values: Sequence[float] | np.ndarray) -> None:
        """Writes a distribution to TensorBoard."""
        if len(values):
            self._board.add_histogram(name, np.asarray(values), step)

    def text(self, step: int, name: str, text: str) -> None:
        """Writes text to TensorBoard as an indented block, which Markdown shows as it is."""
        self._board.add_text(name, "\n".join("    " + line for line in text.splitlines()), step)

    def close(self) -> None:
        """Writes what is still buffered."""
        self._file.close()
        self._board.close()


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file in one move: a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)
