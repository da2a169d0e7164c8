"""Tables and files of grades, those without a single defined value included."""

import json
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.tools.credit.estimates import Estimate
from gigpo_jax.tools.credit.grades import Measured
from gigpo_jax.tools.credit.report import Row, as_json, format_table, plot_grades

NONE = (float("nan"),) * 3
MEASURED = Measured(np.array([1.0, -1.0]), np.array([0.1, 0.2]), np.array([0, 1]))


def row(label: str, corrected: tuple[float, float, float], size: int | None = None) -> Row:
    source = (label, "paper", "feedback")
    values = np.zeros(2, np.float32)
    estimate = Estimate((label,), (f"{label}:paper", "other"), "feedback", (source,), values)
    of_steps = values, {"step": np.array(["1", "2-3"])}
    return Row(
        estimate,
        size,
        *of_steps,
        {"corrected": corrected, "zero": (0.5, 0.25, 0.75)},
        {"step": {"1": {"steps": 2}}},
    )


def test_the_best_estimate_stands_first_and_undefined_values_are_dashes() -> None:
    rows = [row("none", NONE), row("low", (-0.2, -0.4, 0.1)), row("high", (0.6, 0.5, 0.7), 8)]
    lines = format_table(rows).splitlines()
    assert lines[0] == "| estimate | correlation | no credit |"
    assert lines[2:] == [
        "| high:paper = other, feedback, 8 episodes | 0.60 [0.50, 0.70] | 0.50 [0.25, 0.75] |",
        "| low:paper = other, feedback | -0.20 [-0.40, 0.10] | 0.50 [0.25, 0.75] |",
        "| none:paper = other, feedback | - | 0.50 [0.25, 0.75] |",
    ]
    found = json.loads(json.dumps(as_json(rows), allow_nan=False))
    assert [entry["grades"]["corrected"][0] for entry in found["estimates"]] == [0.6, -0.2, None]
    assert [entry["group_size"] for entry in found["estimates"]] == [8, None, None]
    assert found["labels"] == [{"step": ["1", "2-3"]}]


def test_a_plot_is_drawn_where_a_correlation_is_defined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    plot_grades([row("none", NONE)], MEASURED, tmp_path / "none.png")
    assert "no plot: no correlation is defined" in "".join(capsys.readouterr())
    plot_grades([row("none", NONE), row("high", (0.6, 0.5, 0.7))], MEASURED, tmp_path / "some.png")
    assert [path.name for path in tmp_path.iterdir()] == ["some.png"]
    assert (tmp_path / "some.png").read_bytes().startswith(b"\x89PNG")
