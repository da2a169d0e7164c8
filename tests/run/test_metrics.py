"""metrics.jsonl continues where a checkpoint left it; TensorBoard can be read back."""

import json
from pathlib import Path

from gigpo_jax.run.metrics import MetricsWriter, Timers, write_json


def records(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path):
    writer = MetricsWriter(tmp_path)
    writer.scalars(0, {"policy/kl": 0.5})
    position = writer.position
    writer.scalars(1, {"policy/kl": 0.25})
    writer.close()
    writer = MetricsWriter(tmp_path, position=position, purge_step=1)
    writer.scalars(1, {"policy/kl": 0.125})
    writer.close()
    assert records(tmp_path) == [{"step": 0, "policy/kl": 0.5}, {"step": 1, "policy/kl": 0.125}]


def test_numbers_that_are_not_finite_stay_valid_json(tmp_path: Path):
    writer = MetricsWriter(tmp_path)
    writer.scalars(3, {"policy/loss": float("nan"), "a": 1})
    writer.close()
    assert records(tmp_path) == [{"step": 3, "a": 1.0, "policy/loss": None}]


def test_tensorboard_reads_scalars_histograms_and_text(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = MetricsWriter(tmp_path)
    writer.scalars(7, {"episode/success_rate": 0.75})
    writer.histogram(7, "credit/anchor_group_size", [1, 1, 2, 8])
    writer.text(7, "rollout/sample", "<script>alert(1)</script>\nsecond line")
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (scalar,) = events.Scalars("episode/success_rate")
    assert (scalar.step, scalar.value) == (7, 0.75)
    (histogram,) = events.Histograms("credit/anchor_group_size")
    assert histogram.histogram_value.num == 4
    (text,) = events.Tensors("rollout/sample/text_summary")
    # Four spaces in front make Markdown show a line as it is, whatever a page or a model wrote.
    assert text.tensor_proto.string_val[0].decode() == "    <script>alert(1)</script>\n    second line"


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


def test_write_json_leaves_no_temporary_file(tmp_path: Path):
    write_json(tmp_path / "x.json", {"b": 1, "a": [2]})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [2], "b": 1}
