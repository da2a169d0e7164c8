"""Removes from TensorBoard's event files what a resumed run writes again."""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event

from gigpo_jax.core.files import replace_file
from gigpo_jax.run.loggers.loggers import Start

# Bytes of a record: length 8, its checksum 4, the event, its checksum 4.
_HEAD = 12
_TAIL = 4


def is_scalar(event: Event) -> bool:
    """Whether an event holds the numbers of a step."""
    return any(value.HasField("simple_value") for value in event.summary.value)


def prune_events(files: Iterable[Path], start: Start) -> None:
    """Removes the events that a resumed run writes again from files, and torn last ones."""

    def is_kept(event: Event) -> bool:
        # A checkpoint may hold the numbers of its iteration as pending: they are written after
        # it, the histograms and texts before it.
        last_step = start.step if is_scalar(event) else start.done
        return event.step <= last_step

    for path in files:
        content = path.read_bytes()
        pruned = b"".join(record for record, event in read_events(content) if is_kept(event))
        # An unchanged file keeps its inode, which a running TensorBoard has open.
        if pruned != content:
            with replace_file(path) as temporary:
                temporary.write_bytes(pruned)


def read_events(data: bytes) -> Iterator[tuple[bytes, Event]]:
    """Reads the whole records at a file's start: bytes and event."""
    start = 0
    while start + _HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        end = start + _HEAD + length + _TAIL
        # The last record is torn: the process was killed, or the disk was full.
        if end > len(data):
            return
        try:
            event = Event.FromString(data[start + _HEAD : end - _TAIL])
        except DecodeError:
            return
        yield data[start:end], event
        start = end
