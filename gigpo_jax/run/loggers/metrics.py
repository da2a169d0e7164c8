"""Metrics of a run, written to metrics.jsonl and its loggers, and timers."""

import contextlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.keys import flatten
from gigpo_jax.core.errors import storage_errors
from gigpo_jax.run.loggers.loggers import Logger, Start, run_name
from gigpo_jax.run.progress import note_compilation
from gigpo_jax.run.workdir_names import METRICS

logger = logging.getLogger(__name__)

# jax's names of the durations; one that covers the other is not among them. The second begins where
# the first ends.
_LOWERING = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILATION = (_LOWERING, "/jax/core/compile/backend_compile_duration")


class Timers:
    """Adds up wall-clock seconds by name."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._running: Counter[str] = Counter()
        self._count_times: dict[str, float] = {}

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Adds the block's seconds to `name`; blocks of a name that run at once count once."""
        self._count(name)
        self._running[name] += 1
        try:
            yield
        finally:
            self._count(name)
            self._running[name] -= 1

    def _count(self, name: str) -> None:
        """Adds the seconds of running blocks since its last call."""
        now = time.perf_counter()
        if self._running[name]:
            seconds = now - self._count_times[name]
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._count_times[name] = now

    @contextlib.contextmanager
    def compilation(self) -> Iterator[None]:
        """Adds jax's compilation time in the block, of all threads, to `compile`."""

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            # Called in the thread that compiles; several may compile at once, and their seconds add
            # up.
            if event in _COMPILATION:
                self._seconds["compile"] = self._seconds.get("compile", 0.0) + duration_secs
                note_compilation(event == _LOWERING)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            yield
        finally:
            # Otherwise every block would leave a listener, and the next block would count twice.
            jax.monitoring.unregister_event_duration_listener(listen)

    def take(self) -> dict[str, float]:
        """Returns the seconds since the last `take` as `time/<name>`."""
        seconds = self._seconds
        self._seconds = {}
        return {f"time/{name}": value for name, value in seconds.items()}


class MetricsWriter:
    """Writer of metrics.jsonl that also calls the loggers.

    The file is complete after each call. A logger that fails is switched off with a warning.

    Attributes:
      step: Step of the last record in metrics.jsonl, for checkpoints; -1 if there is none.
    """

    def __init__(self, folder: Path, *, step: int = -1, done: int = -1) -> None:
        """Opens metrics.jsonl; removes records that a resumed run repeats.

        Args:
          folder: Folder of metrics.jsonl and of the loggers' folders; made if needed.
          step: Step of the last record that the checkpoint covers.
          done: Last step that the checkpoint covers; its record may come later.

        Raises:
          StorageError: metrics.jsonl cannot be written.
        """
        self.step = step
        self._done = done
        self._path = folder / METRICS
        with storage_errors(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            # Before the cut, which reads the file.
            self._path.touch()
            if step >= 0 or self._path.stat().st_size:
                # A new run has no records.
                from gigpo_jax.run.loggers.resumed_metrics import keep_steps

                keep_steps(self._path, step)
            # Appended after the cut, so `tell` is the end of the last whole record.
            self._file = self._path.open("ab")
        self._loggers: dict[str, Logger] = {}

    def open_loggers(
        self, makers: Mapping[str, Callable[[Start], Logger]], config: ConfigDict
    ) -> None:
        """Starts the loggers of `find_loggers` on the first host, before the first record."""
        if jax.process_index() > 0:
            return
        records: list[tuple[int, dict[str, float]]] = []
        if self._path.stat().st_size:
            from gigpo_jax.run.loggers.resumed_metrics import read_steps

            records = list(read_steps(self._path))
        folder = self._path.parent
        values = flatten(config.to_dict())
        start = Start(run_name(config), folder, values, self.step, self._done, records)
        for name, make in makers.items():
            with self._switch_off_on_failure(name):
                self._loggers[name] = make(start)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a step.

        Args:
          step: Step of the numbers; larger than in the last call.
          values: Numbers by name, such as `policy/kl`; metrics.jsonl has null for NaN and infinity.

        Raises:
          StorageError: metrics.jsonl cannot be written.
        """
        numbers = {name: float(value) for name, value in sorted(values.items())}
        # json.dumps would write NaN, which is no JSON: other programs could not read the line.
        finite = {name: value if np.isfinite(value) else None for name, value in numbers.items()}
        end = self._file.tell()
        with storage_errors(self._path):
            try:
                self._file.write(json.dumps({"step": step, **finite}).encode() + b"\n")
                self._file.flush()
            except OSError:
                # Closing flushes once more, which fails too on a full disk.
                with contextlib.suppress(OSError):
                    self._file.close()
                # A torn record goes, so that the file ends with a whole one.
                os.truncate(self._path, end)
                raise
        # Set between the file and the loggers: metrics.jsonl is the record, and the loggers may
        # fail.
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

    def _call(self, action: Callable[[Logger], None]) -> None:
        # A copy: a logger that fails is removed from the dict meanwhile.
        for name, metric_logger in list(self._loggers.items()):
            with self._switch_off_on_failure(name):
                action(metric_logger)

    @contextlib.contextmanager
    def _switch_off_on_failure(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as err:  # loggers are programs of others
            # Removed before it is closed: closing may fail too, and must not come back here.
            failed = self._loggers.pop(name, None)
            if failed is not None:
                with contextlib.suppress(Exception):
                    failed.close()
            reason = getattr(err, "strerror", None) or f"{type(err).__name__}: {err}"
            text = "the logger %s failed (%s) and is switched off; %s is still written"
            logger.warning(text, name, reason, self._path)
