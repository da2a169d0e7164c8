"""Metrics of a run, written to metrics.jsonl and TensorBoard, and timers."""

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from gigpo_jax.errors import printable, writing
from gigpo_jax.run.tensorboard import EventFile, is_scalar

logger = logging.getLogger(__name__)

# jax's names of the durations; one that covers the other is not among them.
_COMPILATION = ("/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration")


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

    @contextlib.contextmanager
    def compilation(self) -> Iterator[None]:
        """Adds what jax takes to lower and compile programs, in all threads, to `compile` while the block runs."""

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            if event in _COMPILATION:
                self._seconds["compile"] = self._seconds.get("compile", 0.0) + duration_secs

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)

    def take(self) -> dict[str, float]:
        """Returns the seconds since the last `take` as `time/<name>`."""
        seconds, self._seconds = self._seconds, {}
        return {f"time/{name}": value for name, value in seconds.items()}


class MetricsWriter:
    """Writes metrics.jsonl and TensorBoard's files; both are complete after each call.

    TensorBoard's files are given up with a warning when they cannot be written.

    Attributes:
      step: of the last record in metrics.jsonl, for checkpoints; -1 if there is none.
    """

    def __init__(self, folder: Path, *, step: int = -1, done: int = -1) -> None:
        """Opens the files and removes what a resumed run will write again.

        Args:
          folder: holds metrics.jsonl and tensorboard/; made if needed.
          step: of the last record that the checkpoint covers.
          done: the last step that the checkpoint covers; its record may come later.

        Raises:
          StorageError: metrics.jsonl cannot be written.
        """
        self.step = step
        self._path = folder / "metrics.jsonl"
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            _keep_records(self._path, step)
            self._file = self._path.open("ab")
        self._board: EventFile | None = None
        with self._board_may_fail():
            self._board = EventFile(
                folder / "tensorboard", lambda event: event.step <= (step if is_scalar(event) else done)
            )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a step.

        Args:
          step: larger than in the last call.
          values: by name, such as `policy/kl`; metrics.jsonl has null for NaN and infinity.

        Raises:
          StorageError: metrics.jsonl cannot be written.
        """
        numbers = {name: float(value) for name, value in sorted(values.items())}
        finite = {name: value if np.isfinite(value) else None for name, value in numbers.items()}
        end = self._file.tell()
        with writing(self._path):
            try:
                self._file.write(json.dumps({"step": step, **finite}).encode() + b"\n")
                self._file.flush()
            except OSError:
                with contextlib.suppress(OSError):  # it flushes again
                    self._file.close()
                os.truncate(self._path, end)
                raise
        self.step = step
        with self._board_may_fail():
            if self._board is not None:
                self._board.scalars(step, numbers)

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Writes a distribution to TensorBoard."""
        with self._board_may_fail():
            if self._board is not None and len(values):
                self._board.histogram(step, name, values)

    def text(self, step: int, name: str, text: str) -> None:
        """Writes text to TensorBoard, indented, so that Markdown shows it verbatim."""
        with self._board_may_fail():
            if self._board is not None:
                self._board.text(step, name, "\n".join("    " + printable(line) for line in text.splitlines()))

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    @contextlib.contextmanager
    def _board_may_fail(self) -> Iterator[None]:
        try:
            yield
        except OSError as err:
            board, self._board = self._board, None
            if board is not None:
                with contextlib.suppress(OSError):  # it flushes again
                    board.close()
            logger.warning(
                "%s: TensorBoard's files cannot be written (%s) and are given up; metrics.jsonl is still written",
                self._path.with_name("tensorboard"),
                err.strerror,
            )


def _keep_records(path: Path, last: int) -> None:
    """Cuts a metrics.jsonl after its last whole record of a step <= `last`."""
    end = at = 0
    found = -1
    for line in path.read_bytes().splitlines(keepends=True):
        at += len(line)
        step = _step(line)
        if found < step <= last:
            end, found = at, step
    if found < last:
        logger.warning(
            "%s ends with step %d, its checkpoint is of step %d: the records between are lost", path, found, last
        )
    os.truncate(path, end)


def _step(line: bytes) -> int:
    """The step of a record; -1 if the line is not a whole one."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else -1
    except (ValueError, KeyError, TypeError):
        return -1
