"""Loggers by name; one that fails costs the run nothing; what TensorBoard says of a run."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.util import tensor_util

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command
from gigpo_jax.run.loggers.glossary import CHARTS, DESCRIPTIONS, PANEL
from gigpo_jax.run.loggers.loggers import Start, find_loggers
from gigpo_jax.run.loggers.tensorboard import TensorBoard
from tests.run.loggers.test_metrics import events, opened


class Lines:
    """A logger of one's own: appends to a file, and fails at step 3."""

    def __init__(self, start: Start) -> None:
        self._path = start.folder / "lines.jsonl"
        self._path.write_text(
            json.dumps([start.name, start.config["rl.gamma"], start.done, list(start.records)])
            + "\n"
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if step == 3:
            raise RuntimeError("the server\nis gone")
        self._write("scalars", step, dict(values))

    def histogram(self, step: int, name: str, values: list[int]) -> None:
        self._write("histogram", step, name, list(values))

    def text(self, step: int, name: str, markdown: str) -> None:
        self._write("text", step, name, markdown)

    def pictures(self, step: int, name: str, files: list[bytes]) -> None:
        self._write("pictures", step, name, [len(file) for file in files])

    def close(self) -> None:
        self._write("close")

    def _write(self, *what: object) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(what) + "\n")


class Refuses(Lines):
    def __init__(self, start: Start) -> None:
        raise ValueError("no such project")


def test_a_logger_of_ones_own_that_fails_is_given_up_and_the_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = (
        "tests.run.loggers.test_loggers:Lines",
        "tests.run.loggers.test_loggers:Refuses",
        "tensorboard",
    )
    writer = opened(tmp_path, *names)
    writer.scalars(1, {"loss": 1.0})
    writer.close()
    writer = opened(tmp_path, *names, step=1, done=1)
    writer.text(2, "sample", "text")
    writer.histogram(2, "sizes", [1, 2])
    writer.pictures(2, "seen", [])  # a run without pictures calls no logger
    for step in (2, 3, 4):
        writer.scalars(step, {"loss": step})
    writer.close()
    assert [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()] == [
        ["example-gigpo-tiny-seed0", 0.95, 1, [[1, {"loss": 1.0}]]],
        ["text", 2, "sample", "text"],
        ["histogram", 2, "sizes", [1, 2]],
        ["scalars", 2, {"loss": 2.0}],
        ["close"],
    ]
    refused, again, failed = [record.getMessage() for record in caplog.records]
    assert refused == again
    assert (
        "the logger tests.run.loggers.test_loggers:Refuses failed (ValueError: no such project) and is switched off"
        in again
    )
    assert f"is gone) and is switched off; {tmp_path}/metrics.jsonl is still written" in failed
    assert [point.step for point in events(tmp_path).Scalars("loss")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "tensorbord",
            "config.log.to='tensorbord': unknown; did you mean 'tensorboard'\\? known are tensorboard",
        ),
        (
            "tests.run.loggers.test_loggers:Line",
            "config.log.to: cannot load tests.run.loggers.test_loggers:Line",
        ),
    ],
)
def test_an_unknown_logger_is_refused(name: str, says: str) -> None:
    config = default_config()
    config.log.to = (name,)
    with pytest.raises(InputError, match=says):
        find_loggers(config)


def test_without_tensorboard_the_default_names_the_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "gigpo_jax.run.loggers.tensorboard")
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        InputError, match=r"config\.log\.to: needs the package tensorboard"
    ) as caught:
        find_loggers(default_config())
    assert str(caught.value).endswith(f"{install_command('')}, or leave tensorboard out")


def values(folder: Path) -> list[Summary.Value]:
    """What the event files of a run hold."""
    return [
        value
        for path in sorted((folder / "tensorboard").rglob("events.*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def layout(written: list[Summary.Value]) -> Layout:
    """The page "Custom Scalars"."""
    (page,) = [
        value for value in written if value.metadata.plugin_data.plugin_name == "custom_scalars"
    ]
    return Layout.FromString(tensor_util.make_ndarray(page.tensor).item())


def test_tensorboard_has_hyperparameters_descriptions_and_an_order(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    for step in range(2):
        writer.scalars(
            step, {"policy/kl": 0.5, "val/sampled/success_rate/find_coin": 1.0, "own/number": 2.0}
        )
    writer.close()
    opened(tmp_path, step=1, done=1).close()  # neither is written twice
    written = values(tmp_path)
    described = {value.tag: value.metadata.summary_description for value in reversed(written)}
    assert described["policy/kl"] == DESCRIPTIONS["policy/kl"]
    assert described["val/sampled/success_rate/find_coin"] == DESCRIPTIONS["success_rate"]
    assert described["own/number"] == ""
    (start,) = [value for value in written if value.tag == hparams.SESSION_START_INFO_TAG]
    given = hparams.parse_session_start_info_plugin_data(start.metadata.plugin_data.content).hparams
    assert given["rl.gamma"].number_value == 0.95
    assert given["sampling.stop"].string_value == "['</action>']"
    assert given["env.show_admissible"].bool_value
    shown = layout(written)
    assert [category.title for category in shown.category] == list(CHARTS)
    band = shown.category[0].chart[0].margin.series[0]
    assert (band.value, band.lower, band.upper) == PANEL
    assert shown.category[0].chart[1].multiline.tag == ["^episode/success_rate$"]


def test_charts_show_each_environment_of_a_mix_and_no_other_curve(tmp_path: Path) -> None:
    config = dict.fromkeys(("env.mix.shop.name", "env.mix.go.name", "env.mix.go.panel"), "")
    TensorBoard(Start("mixed", tmp_path, config, -1, -1, ())).close()
    (pattern,) = layout(values(tmp_path)).category[0].chart[1].multiline.tag
    curves = ("", "/go", "/shop", "/find_coin", "_low", "/go/far")
    shown = [curve for curve in curves if re.search(pattern, f"episode/success_rate{curve}")]
    assert shown == ["", "/go", "/shop"]
