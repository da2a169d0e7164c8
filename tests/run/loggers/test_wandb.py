"""Weights & Biases, offline, with the real package: what its folder holds after a kill and a
resumed start.
"""

import json
import math
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.loggers.test_metrics import KILLED, opened

pytest.importorskip("wandb", reason="needs the extra wandb")

BLOCK = 32768  # of LevelDB's log format; a record that crosses blocks is cut into fragments
FULL = 1
LAST = 4


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def logged(folder: Path) -> tuple[dict[str, str], dict[str, list[tuple[int, object]]]]:
    """The last start's run: id and name, and of each metric the (step, value)."""
    from wandb.proto import wandb_internal_pb2

    (newest,) = (folder / "wandb" / "latest-run").glob("*.wandb")
    points = defaultdict(list)
    about = {}
    for data in fragments(newest.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("run"):
            about = {
                "id": record.run.run_id,
                "name": record.run.display_name,
                "project": record.run.project,
            }
            about |= {item.key: item.value_json for item in record.run.config.update}
        values = {
            ".".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in record.history.item
        }
        for name, value in values.items():
            points[name].append((values.get("_step"), value))
    return about, points


def fragments(data: bytes) -> Iterator[bytes]:
    at, whole = 7, b""  # after the file's header
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            yield whole
            whole = b""


def test_after_a_kill_a_resumed_start_holds_every_point_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, "wandb"], timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    known = (tmp_path / "wandb" / "id.txt").read_text()
    writer = opened(tmp_path, "wandb", step=1, done=1)
    for step in range(2, 5):
        writer.text(step, "sample", f"<b>of {step}</b> again")
        writer.histogram(step, "sizes", [1, step + 1])
        writer.pictures(step, "seen", [b"of", bytes([step])])
        writer.scalars(step, {"loss": math.nan if step == 4 else step})
    writer.close()
    assert "switched off" not in caplog.text
    until = time.monotonic() + 60
    about, points = logged(tmp_path)
    while (
        len(points["loss"]) < 5 and time.monotonic() < until
    ):  # wandb's own process writes the file
        time.sleep(0.2)
        about, points = logged(tmp_path)
    assert (about["id"], about["name"], about["project"]) == (
        known,
        "example-gigpo-tiny-seed0",
        "gigpo_jax",
    )
    assert about["rl.algorithm"] == '"gigpo"'
    assert points["loss"][:4] == [(i, i) for i in range(4)]
    assert [step for step, _ in points["loss"]] == list(range(5))
    assert math.isnan(float(points["loss"][4][1]))
    assert (
        len(points["sizes"] or points["sizes._type"])
        == len(points["sample"] or points["sample._type"])
        == 3
    )
    pages = {path.read_text() for path in tmp_path.glob("wandb/latest-run/files/media/html/*.html")}
    assert "<pre>&lt;b&gt;of 4&lt;/b&gt; again</pre>" in pages
    assert sum('src="data:image/png;base64,b2Y="' in page for page in pages) == 3
    assert sum('src="data:image/png;base64,BA==" alt="picture 2"' in page for page in pages) == 1
