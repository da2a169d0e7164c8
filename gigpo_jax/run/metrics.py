"""Metrics of a run, written to metrics.jsonl and its loggers, and timers."""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.errors import writing
from gigpo_jax.run.loggers import Logger, Start, start_of

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
    """Writes metrics.jsonl, which is complete after each call, and calls the loggers.

    A logger that fails is switched off with a warning.

    Attributes:
      step: of the last record in metrics.jsonl, for checkpoints; -1 if there is none.
    """

    def __init__(self, folder: Path, *, step: int = -1, done: int = -1) -> None:
        """Opens metrics.jsonl and removes what a resumed run will write again.

        Args:
          folder: holds metrics.jsonl and the loggers' folders; made if needed.
          step: of the last record that the checkpoint covers.
          done: the last step that the checkpoint covers; its record may come later.

        Raises:
          StorageError: metrics.jsonl cannot be written.
        """
        self.step, self._done = step, done
        self._path = folder / "metrics.jsonl"
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            _keep_records(self._path, step)
            self._file = self._path.open("ab")
        self._loggers: dict[str, Logger] = {}

    def open_loggers(self, makers: Mapping[str, Callable[[Start], Logger]], config: ConfigDict) -> None:
        """Starts the loggers of `find_loggers`, before the first record; on the first of several hosts."""
        records = list(_records(self._path))
        start = start_of(config, self._path.parent, self.step, self._done, records)
        for name, make in makers.items() if jax.process_index() == 0 else ():
            with self._may_fail(name):
                self._loggers[name] = make(start)

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
        self._call(lambda logger: logger.scalars(step, numbers))

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Gives a distribution to the loggers."""
        if len(values):
            self._call(lambda logger: logger.histogram(step, name, values))

    def text(self, step: int, name: str, markdown: str) -> None:
        """Gives a text to the loggers."""
        self._call(lambda logger: logger.text(step, name, markdown))

    def pictures(self, step: int, name: str, files: Sequence[bytes]) -> None:
        """Gives PNG files to the loggers."""
        if files:
            self._call(lambda logger: logger.pictures(step, name, files))

    def close(self) -> None:
        """Closes metrics.jsonl and the loggers."""
        self._file.close()
        self._call(lambda logger: logger.close())

    def _call(self, do: Callable[[Logger], None]) -> None:
        for name, made in list(self._loggers.items()):
            with self._may_fail(name):
                do(made)

    @contextlib.contextmanager
    def _may_fail(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as err:  # loggers are programs of others
            made = self._loggers.pop(name, None)
            if made is not None:
                with contextlib.suppress(Exception):
                    made.close()
            reason = getattr(err, "strerror", None) or f"{type(err).__name__}: {err}"
            text = "the logger %s failed (%s) and is switched off; %s is still written"
            logger.warning(text, name, reason, self._path)


def _records(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The whole records of a metrics.jsonl; null is NaN."""
    for line in path.read_bytes().splitlines(keepends=True):
        step = _step(line)
        if step >= 0:
            values = json.loads(line)
            yield step, {name: np.nan if value is None else value for name, value in values.items() if name != "step"}


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
