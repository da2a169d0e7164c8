"""TensorBoard event files, written without a thread: a write is in the file when its call returns."""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.custom_scalar import metadata as custom_scalars
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MarginChartContent,
    MultilineChartContent,
)
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.image import metadata as image
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from gigpo_jax.env_bridge.png import png_size
from gigpo_jax.files import replacing
from gigpo_jax.run.glossary import CHARTS, PANEL, description
from gigpo_jax.run.loggers import Start

# Bytes of a record: length 8, its checksum 4, the event, its checksum 4.
_HEAD, _TAIL = 12, 4


class TensorBoard:
    """An event file in tensorboard/NAME below the folder of a run. Every method may raise `OSError`."""

    def __init__(self, start: Start) -> None:
        """Starts a file, and removes events from older ones that a resumed run will write again."""
        board = start.folder / "tensorboard"
        for path in board.rglob("events.out.tfevents.*"):
            _prune(path, lambda event: event.step <= (start.step if is_scalar(event) else start.done))
        folder = board / start.name
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._described: set[str] = set()
        self._write(Event(file_version="brain.Event:2"))
        if start.done < 0:
            self._write(Event(summary=hparams_pb({key: _hparam(value) for key, value in start.config.items()})))
            mixed = {key.split(".")[2] for key in start.config if key.startswith("env.mix.")}
            self._write(Event(summary=_layout(sorted(mixed))))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a step."""
        numbers = [
            Summary.Value(tag=name, simple_value=value, metadata=self._metadata(name)) for name, value in values.items()
        ]
        self._write(Event(step=step, summary=Summary(value=numbers)))

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Writes a distribution."""
        self._write(Event(step=step, summary=histogram_pb(name, values, description=description(name))))

    def text(self, step: int, name: str, markdown: str) -> None:
        """Writes a text."""
        self._write(Event(step=step, summary=text_pb(name, markdown, description=description(name))))

    def pictures(self, step: int, name: str, files: Sequence[bytes]) -> None:
        """Writes PNG files."""
        height, width = png_size(files[0])
        tensor = make_tensor_proto([str(width).encode(), str(height).encode(), *files])
        about = image.create_summary_metadata(display_name=None, description=description(name))
        self._write(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, tensor=tensor, metadata=about)])))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _metadata(self, name: str) -> SummaryMetadata | None:
        """Of the first value of a metric in a file; TensorBoard reads no other."""
        if name in self._described:
            return None
        self._described.add(name)
        plugin = SummaryMetadata.PluginData(plugin_name="scalars")
        return SummaryMetadata(summary_description=description(name), plugin_data=plugin)

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        RecordWriter(self._file).write(event.SerializeToString())
        self._file.flush()


def _hparam(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _layout(labels: Sequence[str]) -> Summary:
    """The page "Custom Scalars": what matters first; other pages sort by name.

    Charts show the curves of each environment of `env.mix` beside that of all.
    """
    ending = f"(/({'|'.join(labels)}))?$" if labels else "$"
    value, lower, upper = PANEL
    band = MarginChartContent(series=[MarginChartContent.Series(value=value, lower=lower, upper=upper)])
    charts = {
        title: [
            Chart(title=", ".join(names), multiline=MultilineChartContent(tag=[f"^{n}{ending}" for n in names]))
            for names in groups
        ]
        for title, groups in CHARTS.items()
    }
    charts[next(iter(CHARTS))].insert(0, Chart(title=value, margin=band))
    layout = Layout(category=[Category(title=title, chart=chart) for title, chart in charts.items()])
    return Summary(
        value=[
            Summary.Value(
                tag=custom_scalars.CONFIG_SUMMARY_TAG,
                tensor=make_tensor_proto(layout.SerializeToString()),
                metadata=custom_scalars.create_summary_metadata(),
            )
        ]
    )


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
