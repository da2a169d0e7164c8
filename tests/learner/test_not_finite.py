"""Losses and gradients that are not finite end a run; it continues from before them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.metrics import records
from tests.runs import LIMIT_S, command, run


@pytest.mark.slow
def test_losses_that_are_not_finite_stop_the_run_with_a_good_checkpoint(
    flags: list[str], tmp_path: Path
):
    workdir = tmp_path / "run"
    # A step of 1e38 makes the parameters overflow in the next forward pass.
    done = run(workdir, "train", *flags, "--config.optim.lr=1e38", "--config.train.minibatch=4")
    assert done.returncode == 1, done.stderr
    assert "not finite three times in a row" in done.stdout
    assert any((workdir / "checkpoints").iterdir())


BAD_UPDATES = """
import dataclasses, itertools, runpy
import numpy as np
from gigpo_jax.learner import learner
original, calls = learner.make_minibatches, itertools.count(1)
def make_minibatches(*args, **kwargs):
    batches = original(*args, **kwargs)
    if next(calls) == 3:  # of iteration 3 the first update is good
        batches[1:] = [dataclasses.replace(b, advantage=b.advantage * np.float32("nan")) for b in batches[1:]]
    return batches
learner.make_minibatches = make_minibatches
runpy.run_module("gigpo_jax.main", run_name="__main__")
"""


@pytest.mark.slow
def test_an_iteration_that_bad_updates_ended_is_played_anew_with_what_was_learnt(
    flags: list[str], tmp_path: Path
):
    workdir = tmp_path / "run"
    small = [*flags, "--config.train.minibatch=4", "--config.checkpoint.every=1000"]
    started = [sys.executable, "-c", BAD_UPDATES, *command(workdir, "train", *small)[3:]]
    done = subprocess.run(started, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1, done.stderr
    assert (
        "iteration 3: the policy's loss or its gradient was not finite three times in a row"
        in done.stdout
    )
    assert [record["step"] for record in records(workdir)] == [0, 1, 2]
    done = run(workdir, "train", *small)
    assert done.returncode == 0, done.stderr
    assert "continuing after iteration 2" in done.stdout
    again = records(workdir)
    assert [record["step"] for record in again] == list(range(7))
    # In its first minibatch the policy that learns is the one that played, to rounding.
    assert again[3]["policy/behaviour_mismatch"] < 1e-4
    assert again[3]["policy/skipped"] == 0


def test_a_warm_start_whose_loss_is_not_finite_stops_with_a_good_checkpoint(tmp_path: Path):
    done = run(tmp_path / "sft", "sft", "--config.optim.lr=1e38")
    assert done.returncode == 1, done.stderr
    assert "not finite three times in a row; lower config.optim.lr" in done.stdout
    assert [path.name for path in (tmp_path / "sft" / "checkpoints").iterdir()]
    assert not (tmp_path / "sft" / "model").exists()
