"""The XLA flags of launch/xla_gpu_flags.txt: the pinned jax knows their names and values."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
FILE = ROOT / "launch" / "xla_gpu_flags.txt"
FLAGS = [line.partition(" ")[0] for line in FILE.read_text().splitlines() if line[:2] == "--"]


def start_jax(*flags: str) -> subprocess.CompletedProcess[str]:
    """A process that starts jax with these flags."""
    environment = os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )


def test_the_parser_of_the_pinned_jax_takes_every_flag() -> None:
    assert {flag.partition("=")[0].rpartition("_")[2] for flag in FLAGS} >= {"scheduler", "bytes"}
    done = start_jax(*FLAGS)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_parser_refuses_other_names() -> None:
    """Otherwise the test above would show nothing."""
    other = FLAGS[0].replace("=", "_of_no_version=")
    done = start_jax(*FLAGS, other)
    assert done.returncode != 0
    assert "Unknown flag in XLA_FLAGS" in done.stderr
    assert other in done.stderr


def test_the_documented_command_selects_each_group() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    (function,) = [line for line in page.splitlines() if line.startswith("flags() {")]
    selected = []
    for group in ("latency", "combine", "autotune"):
        command = ["bash", "-c", f"{function}\nflags {group}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        selected += done.stdout.split()
    assert selected == FLAGS
