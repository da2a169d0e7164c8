"""TensorBoard event files, written without a thread.

A write is in the file when its call returns, so a full disk is an exception of that call.
tensorboardX would not be shorter: its writer replaces the three lines of `_write`, its histograms
and texts carry no descriptions, and its images need Pillow.
"""

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.run.loggers.glossary import CHARTS, PANEL, describe_metric
from gigpo_jax.run.loggers.loggers import Start

# A requirement of the package, which a smaller installation may leave out.
try:
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
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.record_writer import RecordWriter
    from tensorboard.util.tensor_util import make_tensor_proto
except ImportError as err:
    from gigpo_jax.core.optional import explain_import

    raise explain_import(err, "", key="config.log.to", other="leave tensorboard out") from err

_PREFIX = "events.out.tfevents."


class TensorBoard:
    """An event file in tensorboard/NAME below a run's folder; every method may raise `OSError`."""

    def __init__(self, start: Start) -> None:
        """Starts a file, and removes the events that a resumed run writes again from older ones."""
        board = start.folder / "tensorboard"

        # Before the new file is opened, which is not pruned.
        older_files = list(board.rglob(f"{_PREFIX}*"))
        if older_files:
            from gigpo_jax.run.loggers.event_pruning import prune_events

            prune_events(older_files, start)
        folder = board / start.name
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{_PREFIX}{_start_time(folder):.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._described: set[str] = set()
        # TensorBoard expects it as the first record of a file.
        self._write(Event(file_version="brain.Event:2"))
        # A resumed run has them in its first file.
        if start.done < 0:
            hparams = {key: _as_hparam(value) for key, value in start.config.items()}
            self._write(Event(summary=hparams_pb(hparams)))
            labels = {key.split(".")[2] for key in start.config if key.startswith("env.mix.")}
            self._write(Event(summary=_chart_layout(sorted(labels))))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a step."""
        numbers = [
            Summary.Value(tag=name, simple_value=value, metadata=self._metadata(name))
            for name, value in values.items()
        ]
        self._write(Event(step=step, summary=Summary(value=numbers)))

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Writes a distribution."""
        summary = histogram_pb(name, values, description=describe_metric(name))
        self._write(Event(step=step, summary=summary))

    def text(self, step: int, name: str, markdown: str) -> None:
        """Writes a text."""
        summary = text_pb(name, markdown, description=describe_metric(name))
        self._write(Event(step=step, summary=summary))

    def pictures(self, step: int, name: str, files: Sequence[bytes]) -> None:
        """Writes PNG files."""
        from gigpo_jax.run.loggers.picture_events import picture_summary

        self._write(Event(step=step, summary=picture_summary(name, files)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _metadata(self, name: str) -> SummaryMetadata | None:
        """Metadata of a metric's first value; TensorBoard reads no other."""
        if name in self._described:
            return None
        self._described.add(name)
        plugin = SummaryMetadata.PluginData(plugin_name="scalars")
        return SummaryMetadata(summary_description=describe_metric(name), plugin_data=plugin)

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        RecordWriter(self._file).write(event.SerializeToString())
        self._file.flush()


def _start_time(folder: Path) -> float:
    """Returns the time for the name of the next event file, s, not before the older files' times.

    TensorBoard reads the files in the order of their names, so a clock that was put back must not
    sort a resumed run before its beginning.
    """
    times = [time.time()]
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(ValueError):  # another program's file
            # At least a second after the newest file.
            times.append(float(".".join(path.name.removeprefix(_PREFIX).split(".")[:2])) + 1.0)
    return max(times)


def _as_hparam(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _chart_layout(labels: Sequence[str]) -> Summary:
    """Builds the page "Custom Scalars", in the order of `CHARTS`; other pages sort by name.

    Charts show the curves of each environment of `env.mix` beside the curve of all environments.
    """
    # The tags of a chart are patterns. This one takes NAME and NAME/LABEL, but no longer name.
    ending = f"(/({'|'.join(labels)}))?$" if labels else "$"
    value, lower, upper = PANEL
    band = MarginChartContent(
        series=[MarginChartContent.Series(value=value, lower=lower, upper=upper)]
    )
    charts = {
        title: [
            Chart(
                title=", ".join(names),
                multiline=MultilineChartContent(tag=[f"^{n}{ending}" for n in names]),
            )
            for names in groups
        ]
        for title, groups in CHARTS.items()
    }
    charts[next(iter(CHARTS))].insert(0, Chart(title=value, margin=band))
    layout = Layout(
        category=[Category(title=title, chart=chart) for title, chart in charts.items()]
    )
    return Summary(
        value=[
            Summary.Value(
                tag=custom_scalars.CONFIG_SUMMARY_TAG,
                tensor=make_tensor_proto(layout.SerializeToString()),
                metadata=custom_scalars.create_summary_metadata(),
            )
        ]
    )
