"""Ctrl-C while a command starts: one line and status 130, in every command."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Python runs it before anything else; an interrupt comes when the module of that name is imported.
INTERRUPTER = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["IMPORTED"]:
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

sys.meta_path.insert(0, Interrupter())
"""
CONFIG = "--config=quickstart"


def interrupt(
    tmp_path: Path, imported: str, *words: str, number: int = signal.SIGINT
) -> subprocess.CompletedProcess[str]:
    """Runs a command that gets an interrupt when it imports a module."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    paths = [str(tmp_path), os.getcwd()]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "IMPORTED": imported,
        "SIGNAL": str(int(number)),
    }
    return subprocess.run(
        [sys.executable, "-m", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imported", "words"),
    [
        ("gigpo_jax.config", ("gigpo_jax.main", CONFIG)),
        ("jax", ("gigpo_jax", "train", CONFIG)),
        ("gigpo_jax.learner.learner", ("gigpo_jax", "train", CONFIG)),
        ("orbax.checkpoint", ("gigpo_jax", "train", CONFIG)),  # set-up, in its locked workdir
        ("gigpo_jax.modes.evaluate", ("gigpo_jax", "eval", CONFIG)),
        ("gigpo_jax.modes.export", ("gigpo_jax", "export", CONFIG)),
        ("gigpo_jax.modes.serve", ("gigpo_jax", "serve", CONFIG)),
        ("numpy", ("gigpo_jax", "sft", CONFIG)),
        ("gigpo_jax.tools.preflight.run", ("gigpo_jax", "preflight", CONFIG)),
        ("gigpo_jax.tools.compare.runs", ("gigpo_jax", "compare", "a", "b")),
        ("numpy", ("gigpo_jax", "inspect", "a")),
        ("gigpo_jax.tools.credit.run", ("gigpo_jax", "credit", CONFIG)),
        ("gigpo_jax.envs.commands", ("gigpo_jax", "envs", "--help")),
    ],
)
def test_ctrl_c_during_imports_is_one_line(
    imported: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    if words[1] in ("train", "eval", "export", "serve", "sft", CONFIG):
        words = (*words, f"--workdir={workdir}")
    if words[1] in ("eval", "export", "serve"):
        words = (*words, "--initial")
    done = interrupt(tmp_path, imported, *words)
    assert (done.returncode, done.stdout, done.stderr) == (
        130,
        "",
        "gigpo_jax: stopped by SIGINT\n",
    )
    assert not workdir.exists()


def test_sigterm_has_its_own_status(tmp_path: Path) -> None:
    words = ("gigpo_jax", "train", CONFIG)
    done = interrupt(tmp_path, "jax", *words, number=signal.SIGTERM)
    assert (done.returncode, done.stderr) == (143, "gigpo_jax: stopped by SIGTERM\n")


def test_ctrl_c_while_a_tool_reads_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    os.mkfifo(config)
    words = [sys.executable, "-m", "gigpo_jax", "inspect", str(tmp_path)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    with config.open("w"):  # returns once the tool reads
        # Python may see an interrupt too late to leave a read that is about to begin; the next one ends it.
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            # Long enough for a loaded machine: a second interrupt would kill a process that is about to end.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
        _, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (130, "gigpo_jax: stopped by SIGINT\n")


COMPUTES = """
import hashlib, signal
from gigpo_jax.core.early_interrupts import INTERRUPTS, end_at_second_interrupt
for number in INTERRUPTS:
    signal.signal(number, lambda number, frame: None)
end_at_second_interrupt()
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # in C, where no handler of Python runs
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_second_interrupt_ends_a_process_that_computes(number: int, status: int) -> None:
    words = [sys.executable, "-c", COMPUTES]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # One interrupt, sent twice as `timeout` does, is no second one.
        process.send_signal(number)
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    name = signal.Signals(number).name
    assert (process.returncode, errors) == (status, f"gigpo_jax: stopped by {name}\n")
