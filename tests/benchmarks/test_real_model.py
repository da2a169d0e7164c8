"""The whole of benchmarks/real_model.py with a model of two layers, from a file in two parts."""

import json
from dataclasses import replace

import pytest

from benchmarks import real_model

pytest.importorskip("gguf")
from tests.tools.import_gguf.files import write_gguf

SMALL = (
    "env.prompt=compact",
    "env.max_steps=3",
    "sampling.max_prompt_tokens=200",
    "sampling.max_response_tokens=100",
    "batch.row_length=512",
    "sft.episodes=2",
    "sft.minibatch=4",
    "train.iterations=1",
    "train.groups=1",
    "train.group_size=2",
    "train.minibatch=6",
    "eval.tasks=2",
    "engine.slots=2",
    "model.lora.rank=2",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_arms_leave_metrics_and_a_stage_ends_with_its_time(tmp_path, capsys, monkeypatch):
    # The model of this test has 512 positions.
    task = replace(real_model.TASKS["drawers"], transfer=("env.options.drawers=5",))
    monkeypatch.setitem(real_model.TASKS, "drawers", task)
    data = write_gguf(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "a").write_bytes(data[:5000])
    (tmp_path / "b").write_bytes(data[5000:])
    parts = ["--gguf", str(tmp_path / "a"), str(tmp_path / "b")]
    flags = ["--task=drawers", f"--out={tmp_path / 'out'}", "--arms", "gigpo", "--minutes=8"]
    together = ["--seeds", "0", "1", "--parallel=2"]
    assert real_model.main([*SMALL, *parts, *flags, *together]) == 0
    for seed in (0, 1):
        text = (tmp_path / f"out/gigpo_seed{seed}/metrics.jsonl").read_text()
        assert "val/sampled/success_rate" in json.loads(text.splitlines()[-1])
        results = json.loads((tmp_path / f"out/gigpo_seed{seed}/transfer.json").read_text())
        assert len(results["outcomes"]["sampled"]["won"]) == 2
    assert "gigpo_seed0: status 0" in capsys.readouterr().out


def test_what_fails_ends_the_program(tmp_path, capsys):
    (tmp_path / "a").write_bytes(b"GGUF")
    assert real_model.main(["--gguf", str(tmp_path / "a"), "--out", str(tmp_path / "out")]) == 1
    assert "cut short" in capsys.readouterr().out
