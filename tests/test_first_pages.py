"""Every command of README, tutorial and guide runs with few tasks, or its config resolves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_pages import ROOT, command_lines, read_page
from tests.processes import patience

PAGES = ("README.md", "docs/tutorial.md", "docs/guide.md")
# Flags that end a command in seconds; the last value of a flag counts.
RUN = (
    "--config.train.iterations=1",
    "--config.train.groups=2",
    "--config.train.group_size=2",
    "--config.train.minibatch=8",
    "--config.env.max_steps=2",
    "--config.engine.slots=4",
    "--config.eval.tasks=2",
)
BOUNDS = {
    "gigpo train": RUN,
    "gigpo compare": (*RUN, "--config.eval.greedy=False", "--seeds=0"),
    "gigpo eval": ("--config.eval.tasks=2",),
    "gigpo envs": ("--games=4",),  # of `generate` alone
    "tensorboard --logdir": ("--inspect",),  # prints what is in the folder, and serves nothing
}
RESOLVED = re.compile(r"--config=alfworld")  # published weights need a GPU
# Why a command is not run.
OTHERS = {
    "git": "the tests are in a clone",
    "cd": "the clone's folder",
    ".": "the tests have an interpreter",
    "export": "a variable, which the test sets",
    "alfworld-download": "gigabytes; the test makes games in their layout",
    "vllm": "another environment; tests/engines/vllm serves exported folders",
}


def list_commands() -> list[list[str]]:
    """Every command of the pages once, in their order; a target of make is what it runs of gigpo."""
    commands = []
    for words in (words for page in PAGES for words in command_lines(read_page(ROOT / page))):
        if words == ["make", "real"]:
            continue  # tests/test_make_real.py
        if words[0] == "make":
            printed = subprocess.run(
                ["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True
            )
            lines = printed.stdout.replace("\\\n", "").splitlines()
            made = [line.split(" -m gigpo_jax ") for line in lines if " -m gigpo_jax " in line]
            assert made, words
            commands += [["gigpo", *rest.split()] for _, rest in made]
        else:
            commands.append(words)
    return [words for number, words in enumerate(commands) if words not in commands[:number]]


@pytest.mark.slow
@pytest.mark.timeout(patience(600))
def test_commands_of_the_first_pages_run(tmp_path: Path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "ALFWORLD_DATA": str(tmp_path / "genuine"),
    }

    def run(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=patience(240),
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr[-2000:]}"

    generate = "gigpo_jax envs alfworld generate --out genuine/json_2.1.1 --split valid_seen"
    run(*generate.split(), "--games=4")
    for words in list_commands():
        program = {"gigpo": "gigpo_jax", "tensorboard": "tensorboard.main"}.get(words[0])
        if program is None:
            assert words[0] in OTHERS, words
        elif RESOLVED.search(" ".join(words)):
            run(program, *words[1:], "--print_config")
        else:
            bounds = BOUNDS.get(" ".join(words[:2]), ())
            run(program, *words[1:], *(bounds if "freeze" not in words else ()))
