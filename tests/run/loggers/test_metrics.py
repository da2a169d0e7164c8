"""metrics.jsonl continues where a checkpoint left it; TensorBoard can be read back."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import StorageError
from gigpo_jax.core.files import write_json
from gigpo_jax.core.png import encode_png
from gigpo_jax.run.loggers.glossary import DESCRIPTIONS
from gigpo_jax.run.loggers.loggers import as_code_block, find_loggers
from gigpo_jax.run.loggers.metrics import MetricsWriter, Timers
from tests.small_disk import SmallDisk

NAME = "example-gigpo-tiny-seed0"


def records(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def events(workdir: Path) -> EventAccumulator:
    accumulator = EventAccumulator(
        str(workdir / "tensorboard" / NAME), size_guidance={"scalars": 0, "tensors": 0}
    )
    accumulator.Reload()
    return accumulator


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path):
    writer = opened(tmp_path)
    writer.scalars(0, {"policy/kl": 0.5})
    step = writer.step
    writer.scalars(1, {"policy/kl": 0.25})
    writer.close()
    writer = opened(tmp_path, step=step, done=0)
    writer.scalars(1, {"policy/kl": 0.125})
    writer.close()
    assert records(tmp_path) == [{"step": 0, "policy/kl": 0.5}, {"step": 1, "policy/kl": 0.125}]


def opened(folder: Path, *loggers: str, step: int = -1, done: int = -1) -> MetricsWriter:
    config = default_config()
    config.env.name, config.model.path, config.log.to = (
        "example",
        "models/tiny",
        loggers or ("tensorboard",),
    )
    writer = MetricsWriter(folder, step=step, done=done)
    writer.open_loggers(find_loggers(config), resolve(config))
    return writer


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.run.loggers.test_metrics import opened
writer = opened(Path(sys.argv[1]), *sys.argv[2:])
for step in range(4):
    writer.text(step, "sample", f"of {step}")
    writer.histogram(step, "sizes", [1, step + 1])
    writer.scalars(step, {"loss": step})
writer.text(4, "sample", "of 4, which waits for its record")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("step", "done"), [(3, 3), (3, 4), (1, 1)])
def test_after_a_kill_tensorboard_holds_each_covered_point_once(
    step: int, done: int, tmp_path: Path
):
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    newest = max((tmp_path / "tensorboard" / NAME).iterdir())
    newest.write_bytes(newest.read_bytes() + b"\x40\0\0\0\0\0\0\0torn")
    writer = opened(tmp_path, step=step, done=done)
    for i in range(done + 1, 6):
        writer.text(i, "sample", f"of {i} again")
        writer.histogram(i, "sizes", [1, i + 1])
    for i in range(step + 1, 6):
        writer.scalars(i, {"loss": i})
    writer.close()
    read = events(tmp_path)
    assert [(point.step, point.value) for point in read.Scalars("loss")] == [
        (i, i) for i in range(6)
    ]
    assert [event.step for event in read.Tensors("sample")] == list(range(6))
    assert [event.step for event in read.Tensors("sizes")] == [
        i for i in range(6) if i != 4 or done < 4
    ]
    assert [record["step"] for record in records(tmp_path)] == list(range(6))


def test_events_of_a_resumed_run_are_read_last_also_where_the_clock_was_put_back(tmp_path: Path):
    writer = opened(tmp_path)
    writer.scalars(0, {"loss": 2.0})
    writer.close()
    folder = tmp_path / "tensorboard" / NAME
    (first,) = folder.iterdir()
    late = first.rename(folder / "events.out.tfevents.8999999999.000000.host.1")
    writer = opened(tmp_path, step=0, done=0)
    writer.scalars(1, {"loss": 1.0})
    writer.close()
    assert len(list(folder.iterdir())) == 2
    assert min(folder.iterdir()) == late
    assert [point.value for point in events(tmp_path).Scalars("loss")] == [2.0, 1.0]


def test_a_short_metrics_file_is_cut_to_whole_records_with_a_warning(tmp_path: Path, caplog):
    lines = "".join(f'{{"step": {i}, "loss": {i}.0}}\n' for i in range(5))
    (tmp_path / "metrics.jsonl").write_text(
        lines.replace('{"step": 1,', '{"step": 1\\') + '{"step": 5, "lo'
    )
    opened(tmp_path, step=4, done=4).close()
    assert not caplog.records
    assert (tmp_path / "metrics.jsonl").read_text().count(
        "\n"
    ) == 5  # a damaged line costs no others
    (tmp_path / "metrics.jsonl").write_text(lines[:-4])
    writer = opened(tmp_path, step=6, done=6)
    assert (
        "ends with step 3, its checkpoint is of step 6: the records between are lost" in caplog.text
    )
    writer.scalars(7, {"loss": 7})
    writer.close()
    assert [record["step"] for record in records(tmp_path)] == [0, 1, 2, 3, 7]


def test_tensorboard_on_a_full_disk_is_given_up_and_the_metrics_go_on(
    tmp_path: Path, small_disk: SmallDisk, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "tensorboard").symlink_to(small_disk(16))
    writer = opened(tmp_path)
    for step in range(20):
        writer.text(step, "sample", "text " * 500)
        writer.scalars(step, {"loss": 1.0})
    writer.close()
    assert len(records(tmp_path)) == 20
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the logger tensorboard failed (No space left on device) and is switched off" in warning
    opened(tmp_path, step=19, done=19).close()  # nor does the next start need the space
    assert len(records(tmp_path)) == 20


def test_metrics_on_a_full_disk_end_with_a_whole_record(small_disk: SmallDisk):
    disk = small_disk(16)
    writer = opened(disk)
    where = rf"{disk}/metrics.jsonl: cannot be written \(No space left on device\)"
    with pytest.raises(StorageError, match=where):  # noqa: PT012
        for step in range(1000):
            writer.scalars(step, {f"name{i}": 1.0 for i in range(20)})
    writer.close()
    assert [record["step"] for record in records(disk)] == list(range(step))
    with pytest.raises(StorageError, match="cannot be written"):
        write_json(disk / "x.json", list(range(10_000)))
    assert {path.name for path in disk.iterdir()} == {"metrics.jsonl", "tensorboard"}


def test_numbers_that_are_not_finite_stay_valid_json(tmp_path: Path):
    writer = opened(tmp_path)
    writer.scalars(3, {"policy/loss": float("nan"), "a": 1})
    writer.close()
    assert records(tmp_path) == [{"step": 3, "a": 1.0, "policy/loss": None}]


def test_tensorboard_reads_scalars_histograms_texts_and_pictures(tmp_path: Path):
    writer = opened(tmp_path)
    writer.scalars(7, {"episode/success_rate": 0.75})
    writer.histogram(7, "credit/anchor_group_size", [1, 1, 2, 8])
    writer.text(
        7, "rollout/sample", as_code_block("<script>alert(1)</script>\nsecond \x1b[31m\ud800 line")
    )
    pictures = [encode_png(np.full((2, 3, 3), value, np.uint8)) for value in (7, 9)]
    writer.pictures(7, "rollout/pictures", pictures)
    writer.close()
    read = events(tmp_path)
    (scalar,) = read.Scalars("episode/success_rate")
    assert (scalar.step, scalar.value) == (7, 0.75)
    (histogram,) = read.Tensors("credit/anchor_group_size")
    assert (
        tensor_util.make_ndarray(histogram.tensor_proto)[:, 2].sum() == 4
    )  # columns: left, right, count
    (text,) = read.Tensors("rollout/sample")
    # Four spaces in front make Markdown show a line as it is, whatever a page or a model wrote.
    shown = tensor_util.make_ndarray(text.tensor_proto).item().decode()
    assert shown == "    <script>alert(1)</script>\n    second \\x1b[31m\\ud800 line"
    (seen,) = read.Tensors("rollout/pictures")
    assert tensor_util.make_ndarray(seen.tensor_proto).tolist() == [
        b"3",
        b"2",
        *pictures,
    ]  # width, height
    assert read.SummaryMetadata("rollout/pictures").plugin_data.plugin_name == "images"
    assert (
        read.SummaryMetadata("rollout/pictures").summary_description
        == DESCRIPTIONS["rollout/pictures"]
    )


def test_timers_add_up_and_start_over():
    timers = Timers()
    with timers.time("update"):
        pass
    with timers.time("update"):
        pass
    seconds = timers.take()
    assert list(seconds) == ["time/update"]
    assert seconds["time/update"] >= 0
    assert timers.take() == {}


def test_blocks_that_overlap_count_once(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 2.0, 10.0, 15.0, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    timers = Timers()
    first, second, third = (timers.time("rollout") for _ in range(3))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert timers.take() == {"time/rollout": 10.0}
    second.__exit__(None, None, None)
    with third:
        pass
    assert timers.take() == {"time/rollout": 6.0}


def test_write_json_leaves_no_temporary_file(tmp_path: Path):
    write_json(tmp_path / "x.json", {"b": 1, "a": [2]})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [2], "b": 1}


def test_compilation_has_a_time_of_its_own():
    timers = Timers()
    double = jax.jit(lambda x: x * 2)
    with timers.compilation():
        double(1.0)
        assert timers.take()["time/compile"] > 0
        double(2.0)
        assert timers.take() == {}
    double(np.ones(3))
    assert timers.take() == {}
