"""The lines of a comparison's figure and their names."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from gigpo_jax.core.errors import InputError
from gigpo_jax.tools.compare.command import main
from gigpo_jax.tools.compare.figure import (
    MAX_LINES,
    Line,
    draw_lines,
    select_arms,
    spread_heights,
    wrap_label,
)
from gigpo_jax.tools.compare.runs import Arm, group_arms, read_run
from tests.tools.compare.test_runs import write_run


def make_arms(folder: Path) -> list[Arm]:
    """Arms a, b, .. f; the later the better."""
    outcomes = ("00000", "10000", "11000", "11100", "11110", "11111")
    runs = []
    for name, won in zip(("grpo", "rloo", "gigpo", "dapo", "hgpo", "salt"), outcomes):
        runs.append(read_run(write_run(folder / name, ["00000", won], rl__algorithm=name)))
    return group_arms(runs)


def labels(arms: list[Arm]) -> list[str]:
    return [arm.label for arm in arms]


def test_a_figure_has_the_baseline_and_the_best_arms_or_those_that_are_named(
    tmp_path: Path,
) -> None:
    arms = make_arms(tmp_path)
    assert labels(select_arms(arms, [])) == ["grpo", "dapo", "hgpo", "salt"]
    assert labels(select_arms(arms, ["rloo", "grpo"])) == ["grpo", "rloo"]
    with pytest.raises(InputError, match="--lines=rlo: no such arm; nearest: rloo"):
        select_arms(arms, ["rlo"])
    with pytest.raises(InputError, match=f"name at most {MAX_LINES - 1}"):
        select_arms(arms, ["rloo", "gigpo", "dapo", "hgpo"])


def test_the_command_takes_a_baseline_and_says_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_arms(tmp_path)
    folders = [str(tmp_path / name) for name in ("grpo", "rloo", "gigpo", "dapo", "hgpo")]
    assert main([*folders, f"--out={tmp_path / 'out'}", "--baseline=rloo"]) == 0
    output = capsys.readouterr().out
    assert "final, minus rloo" in output
    assert output.index("| rloo |") < output.index("| grpo |")
    assert "not in the figure: grpo; choose with --lines" in output
    assert main([*folders, f"--out={tmp_path / 'no'}", "--baseline=rlo"]) == 2
    assert "--baseline=rlo: no such arm; nearest: rloo" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_names_do_not_cover_each_other_and_keep_their_order() -> None:
    heights = spread_heights([50.0, 49.9, 40.0, 50.1], 1.0)
    assert np.argsort(heights).tolist() == [2, 1, 0, 3]
    assert np.diff(sorted(heights)).min() > 0.99
    assert heights[2] == 40.0


def test_long_names_are_broken_where_they_can_be() -> None:
    assert wrap_label("gigpo anchor=feedback+inventory+sticky") == (
        "gigpo anchor=feedback+\ninventory+sticky"
    )
    assert wrap_label("grpo") == "grpo"


def test_a_line_its_bar_and_its_name_have_the_colour_of_its_style() -> None:
    axis = Figure().subplots()
    lines = [Line(name, np.arange(2), np.full((2, 3), 50.0)) for name in "ab"]
    draw_lines(axis, lines, styles=(("#111111", "o"), ("#222222", "v")))
    expected = ["#111111", "#222222"]
    assert [line.get_color() for line in axis.lines] == expected
    assert [line.get_marker() for line in axis.lines] == ["o", "v"]
    assert [to_hex(bar.get_color()[0]) for bar in axis.collections] == expected
    assert [text.get_color() for text in axis.texts] == expected
