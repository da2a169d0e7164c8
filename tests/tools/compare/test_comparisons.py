"""Differences in all outcomes, including files of `gigpo eval`, with p-values."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.tools.compare.command import main
from gigpo_jax.tools.compare.comparisons import list_comparisons, list_explorations
from gigpo_jax.tools.compare.report import make_rows
from gigpo_jax.tools.compare.runs import group_arms, read_run
from gigpo_jax.tools.compare.statistics import correct_p_values
from tests.tools.compare.test_runs import write_run

OUTCOMES = {"grpo": ("1000", "0011"), "gigpo": ("1100", "0111"), "rloo": ("0000", "0001")}


def write_evaluation(folder: Path, won: str, **changes: Any) -> None:
    """The file `seen.json` as `gigpo eval` writes it after iteration 10."""
    content = {
        "iteration": 10,
        "panel": "seen",
        "sha256": "ab",
        "agent": "plain",
        "settings": {"eval.temperature": 1.0, "rl.algorithm": folder.name, "env.max_steps": 50},
        "tasks": ["s0", "s1", "s2", "s3"],
        "outcomes": {"sampled": {"won": [None if x == "-" else x == "1" for x in won]}},
    }
    (folder / "seen.json").write_text(json.dumps(content | changes))


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    folders = []
    for name, by_seed in OUTCOMES.items():
        for seed, won in enumerate(by_seed):
            folder = write_run(
                tmp_path / f"{name}{seed}", ["0000", won], seed=seed, rl__algorithm=name
            )
            write_evaluation(folder, "1-10" if name == "gigpo" else "0010")
            folders.append(folder)
    return folders


def test_all_outcomes_are_compared_and_corrected_but_the_main_one(folders: list[Path]) -> None:
    arms = group_arms([read_run(folder) for folder in folders])
    comparisons = list_comparisons(arms, ["seen.json"], main="gigpo")
    rows = {(row.arm, row.outcome): row for row in comparisons}
    assert list(rows) == [
        (arm, outcome) for outcome in ("final", "area", "seen.json") for arm in ("gigpo", "rloo")
    ]
    assert rows["gigpo", "final"].difference.mean == pytest.approx(2 / 8)
    assert rows["rloo", "final"].difference.mean == pytest.approx(-2 / 8)
    assert rows["gigpo", "area"].difference.mean == pytest.approx(1 / 8)
    # The task that was aborted counts in neither arm: one of three is won besides.
    assert rows["gigpo", "seen.json"].difference.mean == pytest.approx(1 / 3)
    assert rows["gigpo", "seen.json"].success.mean == pytest.approx(2 / 3)
    assert rows["rloo", "seen.json"].p_value == 1.0
    assert rows["gigpo", "final"].corrected is None
    others = [row for row in comparisons if row.corrected is not None]
    assert len(others) == 5
    np.testing.assert_allclose(
        [row.corrected for row in others],
        correct_p_values(np.array([row.p_value for row in others])),
    )


def test_arms_are_compared_with_gigpo_without_a_correction(folders: list[Path]) -> None:
    arms = group_arms([read_run(folder) for folder in folders])
    rows = {row.arm: row for row in list_explorations(arms) if row.outcome == "final"}
    assert list(rows) == ["rloo"]
    assert rows["rloo"].difference.mean == pytest.approx(-4 / 8)
    # The sums of the two seeds are -2 each: this pattern and the opposite one, of four.
    assert rows["rloo"].flip_p_value == 0.5
    assert rows["rloo"].corrected is None
    # GiGPO is the baseline, or no arm.
    assert list_explorations([arms[1], *arms[:1]]) == []
    assert list_explorations([arms[0], arms[2]]) == []


def test_the_command_prints_and_records_them(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*map(str, folders), f"--out={tmp_path / 'out'}", "--main=gigpo"]
    assert main([*words, "--evaluations=seen.json"]) == 0
    output = capsys.readouterr().out
    assert "| minus grpo (95%) | p | p, sign flip | p, Holm over 5 |" in output
    assert "| minus GiGPO (95%) | p | p, sign flip | exploratory |" in output
    assert "| gigpo | seen.json | 66.7 | +33.3" in output
    assert output.count("| main comparison |") == 1
    record = json.loads((tmp_path / "out/comparison.json").read_text())
    assert [row["outcome"] for row in record["comparisons"]].count("seen.json") == 2
    # Earlier texts have the intervals of the bootstrap: these stay in the record.
    gigpo = record["arms"][1]
    assert gigpo["bootstrap"]["final_difference"][0] == gigpo["final_difference"][0]
    assert gigpo["bootstrap"]["final_difference"] != gigpo["final_difference"]
    assert record["comparisons"][0]["bootstrap"] == gigpo["bootstrap"]["final_difference"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"iteration": 5}, "is no evaluation of iteration 10"),
        ({"settings": {"eval.temperature": 0.4, "env.max_steps": 50}}, "eval.temperature differs"),
        ({"panel": "unseen"}, "panel differs"),
        ({"tasks": ["s0", "s1", "s3", "s2"]}, "tasks differs"),
    ],
)
def test_evaluations_under_other_conditions_are_refused(
    folders: list[Path], changes: dict[str, Any], named: str
) -> None:
    write_evaluation(folders[-1], "0010", **changes)
    arms = group_arms([read_run(folder) for folder in folders])
    with pytest.raises(InputError, match=f"rloo1/seen.json: .*{named}"):
        list_comparisons(arms, ["seen.json"])


def test_a_missing_file_and_an_unknown_arm_are_one_line(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, named in (
        ("--evaluations=away.json", "away.json: missing; gigpo eval with --out makes it"),
        ("--main=grpo", "--main=grpo: no such arm; choose from: gigpo, rloo"),
    ):
        assert main([*map(str, folders), f"--out={tmp_path / 'out'}", flag]) == 2
        assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_main_arm_has_a_seed_in_common_with_the_baseline(folders: list[Path]) -> None:
    baseline, other, *_ = group_arms([read_run(folder) for folder in folders])
    baseline = replace(baseline, runs=baseline.runs[:1])
    other = replace(other, runs=other.runs[1:])
    with pytest.raises(InputError, match=f"--main={other.label}: the arm has no seed in common"):
        list_comparisons([baseline, other], [], other.label)


def test_success_is_of_all_seeds_and_a_difference_of_those_in_common(folders: list[Path]) -> None:
    baseline, other, _ = group_arms([read_run(folder) for folder in folders])
    baseline = replace(baseline, runs=baseline.runs[1:])
    row, _ = list_comparisons([baseline, other])
    # GiGPO wins 2 and 3 tasks of 4; with the second seed GRPO wins 2.
    assert (row.success.mean, row.difference.mean) == pytest.approx((5 / 8, 1 / 4))
    _, arm = make_rows([baseline, other])
    assert np.mean(arm.outcomes["final"]) == pytest.approx(5 / 8)
    assert np.mean(arm.outcomes["final_difference"]) == pytest.approx(1 / 4)
    assert arm.shared == 1
