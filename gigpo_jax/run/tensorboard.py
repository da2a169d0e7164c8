"""TensorBoard event files, written without a thread: a write is in the file when its call returns."""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from gigpo_jax.files import replacing

# Bytes of a record: length 8, its checksum 4, the event, its checksum 4.
_HEAD, _TAIL = 12, 4


class EventFile:
    """A new event file in a folder. Every method may raise `OSError`."""

    def __init__(self, folder: Path, keep: Callable[[Event], bool]) -> None:
        """Starts a file.

        Args:
          folder: made if needed.
          keep: whether an event stays in the files that are there; a resumed run writes the others again.
        """
        folder.mkdir(exist_ok=True)
        for path in folder.glob("events.out.tfevents.*"):
            _prune(path, keep)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._write(Event(file_version="brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a step."""
        numbers = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=numbers)))

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Writes a distribution."""
        self._write(Event(step=step, summary=histogram_pb(name, values)))

    def text(self, step: int, name: str, text: str) -> None:
        """Writes a text; TensorBoard shows it as Markdown."""
        self._write(Event(step=step, summary=text_pb(name, text)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        RecordWriter(self._file).write(event.SerializeToString())
        self._file.flush()


def is_scalar(event: Event) -> bool:
    """Whether an event holds the numbers of a step."""
    return any(value.HasField("simple_value") for value in event.summary.value)


def _prune(path: Path, keep: Callable[[Event], bool]) -> None:
    """Removes events from a file, and a torn one at its end."""
    before = path.read_bytes()
    after = b"".join(record for record, event in _records(before) if keep(event))
    if after != before:
        with replacing(path) as temporary:
            temporary.write_bytes(after)


def _records(data: bytes) -> Iterator[tuple[bytes, Event]]:
    """The whole records at the start of a file: bytes and event."""
    start = 0
    while start + _HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        end = start + _HEAD + length + _TAIL
        if end > len(data):
            return
        try:
            event = Event.FromString(data[start + _HEAD : end - _TAIL])
        except DecodeError:
            return
        yield data[start:end], event
        start = end
