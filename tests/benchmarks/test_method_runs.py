"""The table of benchmarks/protocols/methods.md, from runs whose numbers docs/critic.md has."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import method_runs
from benchmarks.results import find_campaign
from gigpo_jax.tools.compare.runs import read_run
from gigpo_jax.tools.compare.statistics import estimate_p_value


def test_arms_are_compared_over_the_seeds_that_all_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"lake_gigpo": ("gigpo", 3), "lake_opd": ("copy", 3), "lake_opd_f2b": ("starts", 2)}
    for name, (source, seeds) in arms.items():
        for seed in range(seeds):
            (tmp_path / f"{name}_seed{seed}").symlink_to(
                find_campaign("learned_rewards") / f"{source}_seed{seed}"
            )
    monkeypatch.setattr(method_runs, "find_campaign", lambda _: tmp_path)
    bases = {"lake": {"gigpo": "opd", "opd": "opd_f2b"}, "house": {"grpo": "ema_grpo"}}
    monkeypatch.setattr(method_runs, "BASES", bases)
    method_runs.main()
    lake, house, _, _, *lines = capsys.readouterr().out.splitlines()
    assert lake == "lake: not finished: opd_f2b 2"
    assert house.count("grpo") == 6
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[:2] for row in cells] == [["lake", arm] for arm in ("gigpo", "opd", "opd_f2b")]
    assert [row[6] for row in cells] == ["43.8, 40.6", "26.6, 26.6", "26.6, 39.8"]
    assert [row[3].split()[0] for row in cells] == ["42.2", "26.6", "33.2"]
    # opd_f2b is compared with opd.
    assert [row[4].split()[0] for row in cells[1:]] == ["-15.6", "+6.6"]
    values = [
        estimate_p_value(read_won("copy") - read_won("gigpo")),
        estimate_p_value(read_won("starts") - read_won("copy")),
    ]
    # Three differences are in the protocol; the house's difference has no runs.
    lower, upper = sorted(values)
    expected = {lower: min(1.0, 3 * lower), upper: min(1.0, max(3 * lower, 2 * upper))}
    assert [row[5] for row in cells[1:]] == [f"{expected[value]:.2g}" for value in values]


def read_won(source: str) -> np.ndarray:
    return np.stack(
        [
            read_run(find_campaign("learned_rewards") / f"{source}_seed{seed}").won[-1]
            for seed in (0, 1)
        ]
    )


def test_tokens_are_those_of_all_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "house_grpo_seed0"
    folder.mkdir()
    for path in (find_campaign("learned_rewards") / "gigpo_seed0").iterdir():
        if path.name != "metrics.jsonl":
            (folder / path.name).symlink_to(path)
    records = [
        json.loads(line) | {"rollout/generated_tokens": 100.0}
        for line in (find_campaign("learned_rewards") / "gigpo_seed0/metrics.jsonl")
        .read_text()
        .splitlines()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    monkeypatch.setattr(method_runs, "find_campaign", lambda _: tmp_path)
    ((seed, (_, tokens)),) = method_runs.read_arm("house", "grpo").items()
    assert (seed, tokens) == (0, 100.0 * len(records))
