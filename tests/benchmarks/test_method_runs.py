"""The table of docs/protocols/methods.md, from runs whose numbers docs/critic.md has."""

import json
from pathlib import Path

import pytest

from benchmarks import method_runs

RUNS = Path(__file__).parents[2] / "benchmarks/results/learned_rewards"


def test_arms_are_compared_with_their_base_over_common_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"lake_gigpo": ("gigpo", 3), "lake_opd": ("copy", 3), "lake_opd_f2b": ("starts", 2)}
    for name, (source, seeds) in arms.items():
        for seed in range(seeds):
            (tmp_path / f"{name}_seed{seed}").symlink_to(RUNS / f"{source}_seed{seed}")
    monkeypatch.setattr(method_runs, "RESULTS", tmp_path)
    method_runs.main()
    _, _, *lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[:2] for row in cells] == [["lake", arm] for arm in ("gigpo", "opd", "opd_f2b")]
    assert [row[3].split()[0] for row in cells] == ["38.3", "29.7", "33.2"]
    assert cells[0][4:] == ["", "", "43.8, 40.6, 30.5"]
    # f2b has two seeds, and opd is its base: 26.6 and 39.8 less 26.6 and 26.6.
    assert [row[4].split()[0] for row in cells[1:]] == ["-8.6", "+6.6"]
    assert all(0.0 < float(row[5]) <= 1.0 for row in cells[1:])


def test_tokens_are_those_of_all_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "house_grpo_seed0"
    folder.mkdir()
    for path in (RUNS / "gigpo_seed0").iterdir():
        if path.name != "metrics.jsonl":
            (folder / path.name).symlink_to(path)
    records = [
        json.loads(line) | {"rollout/generated_tokens": 100.0}
        for line in (RUNS / "gigpo_seed0/metrics.jsonl").read_text().splitlines()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    monkeypatch.setattr(method_runs, "RESULTS", tmp_path)
    outcomes, tokens = method_runs.read_arm("house", "grpo")
    assert (sorted(outcomes), tokens) == ([0], [100.0 * len(records)])
