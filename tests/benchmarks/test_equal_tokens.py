"""The table of benchmarks/protocols/equal_tokens.md, from runs whose outcomes docs/critic.md has."""

import json
from pathlib import Path

import pytest

from benchmarks import equal_tokens
from benchmarks.results import find_campaign


def write_run(folder: Path, source: str, tokens: float) -> None:
    """A run with the outcomes of another one, and a number of tokens."""
    folder.mkdir(parents=True)
    for path in (find_campaign("learned_rewards") / source).iterdir():
        if path.name != "metrics.jsonl":
            (folder / path.name).symlink_to(path)
    lines = (find_campaign("learned_rewards") / source / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) | {"rollout/generated_tokens": 0.0} for line in lines]
    records[-1]["rollout/generated_tokens"] = tokens
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def test_pairs_have_equal_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bases = {"lake": {"gigpo": "carl opd resample", "opd": "opd_f2b"}}
    monkeypatch.setattr(equal_tokens, "find_campaign", lambda name: tmp_path / name)
    monkeypatch.setattr(equal_tokens, "BASES", bases)
    for seed in range(3):
        earlier = {
            "gigpo": ("gigpo", 1000),
            "carl": ("copy", 1040),
            "opd": ("starts", 800),
            "resample": ("copy", 1300),
            "opd_f2b": ("copy", 930),
        }
        for arm, (source, tokens) in earlier.items():
            write_run(tmp_path / f"methods/lake_{arm}_seed{seed}", f"{source}_seed{seed}", tokens)
        again = {
            "opd": [("progress", 960), ("gigpo", 1100)],
            # Neither is equal, so the base has a run nearer to the first one.
            "resample": [("starts", 1080), ("gigpo", 900)],
            "gigpo": [("copy", 1090)],
            # Equal to the earlier run of opd, which is not the chosen one.
            "opd_f2b": [("gigpo", 810)],
        }
        for arm, tries in again.items():
            for number, (source, tokens) in enumerate(tries):
                folder = tmp_path / f"equal_tokens/lake_{arm}_seed{seed}_{number}"
                write_run(folder, f"{source}_seed{seed}", tokens)
    equal_tokens.main()
    _, _, *lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    found = {row[1]: (row[2], row[3], row[4], row[5].split()[0]) for row in cells}
    # Means of docs/critic.md: gigpo 38.3, starts 34.6, copy 29.7, progress 0.0.
    assert found == {
        "carl minus gigpo": (", ".join(["20 / 20 (+4)"] * 3), "29.7", "-8.6", "-8.6"),
        "opd minus gigpo": (", ".join(["20 / 20 (-4)"] * 3), "0.0", "-3.6", "-38.3"),
        "resample minus gigpo": (", ".join(["20 / 20 (-1)"] * 3), "34.6", "-8.6", "+4.9"),
        "opd_f2b minus opd": (", ".join(["20 / 20 (-3)"] * 3), "29.7", "-4.9", "+29.7"),
    }
