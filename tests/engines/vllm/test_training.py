"""Whole runs whose rollouts come from vLLM servers: the same learning, honest staleness, faults and
ends.
"""

import contextlib
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from gigpo_jax.env_bridge.processes.fresh import die_with_parent
from gigpo_jax.rollout.read_record import read_rollouts
from tests.engines.vllm import serving
from tests.processes import gone

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800), pytest.mark.usefixtures("compiled_once")]

ROOT = pathlib.Path(__file__).parents[3]
LIMIT_S = 900.0
ITERATIONS = 6


def command(workdir: pathlib.Path, *flags: str) -> list[str]:
    base = [
        sys.executable,
        "-m",
        "gigpo_jax.main",
        "--config=configs/quickstart.py",
        f"--workdir={workdir}",
    ]
    return [*base, "--config.eval.panel=", "--config.env.workers=1", *flags]


@contextlib.contextmanager
def running(workdir: pathlib.Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose output goes to WORKDIR.out; it ends with the block, and with this process should
    that be killed.
    """
    with pathlib.Path(f"{workdir}.out").open("a") as out:
        with_parent = functools.partial(die_with_parent, signal.SIGTERM)
        process = subprocess.Popen(
            command(workdir, *flags),
            stdout=out,
            stderr=out,
            text=True,
            cwd=ROOT,
            preexec_fn=with_parent,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finish(process: subprocess.Popen[str], workdir: pathlib.Path, status: int = 0) -> str:
    """Waits for the end of a run; its output."""
    process.wait(LIMIT_S)
    out = pathlib.Path(f"{workdir}.out").read_text()
    assert process.returncode == status, out[-4000:]
    return out


def run(workdir: pathlib.Path, *flags: str, status: int = 0) -> str:
    with running(workdir, *flags) as process:
        return finish(process, workdir, status)


def records(workdir: pathlib.Path) -> list[dict[str, float]]:
    """The metrics of all iterations, without the start's."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()][1:]


def wait_for(process: subprocess.Popen[str], workdir: pathlib.Path, step: int) -> None:
    until = time.monotonic() + LIMIT_S
    metrics = workdir / "metrics.jsonl"
    while not (metrics.exists() and f'"step": {step},' in metrics.read_text()):
        assert process.poll() is None, pathlib.Path(f"{workdir}.out").read_text()[-4000:]
        assert time.monotonic() < until
        time.sleep(0.1)


def descendants(pid: int) -> dict[int, str]:
    """All processes below one, but for the environments' processes."""
    listing = subprocess.run(
        ["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()[1:]]
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        found |= (children := {int(row[0]): row[2] for row in rows if int(row[1]) in parents})
        parents = set(children)
    return {number: args for number, args in found.items() if "vllm" in args.lower()}


def test_the_quickstart_learns_with_vllm_as_it_does_in_process_through_two_kills(
    tmp_path: pathlib.Path,
) -> None:
    """On the way the server is killed (it comes back with the current weights), then the learner
    (nothing is left of the server; the same command continues)."""
    flags = (f"--config.train.iterations={ITERATIONS}", "--config.checkpoint.every=2")
    ours = tmp_path / "jax"
    vllm = tmp_path / "vllm"
    with_vllm = (*flags, "--config.engine.name=vllm")
    with running(ours, *flags) as in_process, running(vllm, *with_vllm) as process:
        wait_for(process, vllm, 1)
        servers = descendants(process.pid)
        front = next(
            pid
            for pid, args in servers.items()
            if "api_server" in args and "vllm.worker.guard" not in args
        )
        os.kill(front, signal.SIGKILL)
        wait_for(process, vllm, 3)
        servers |= descendants(process.pid)
        process.kill()
        process.wait()
        assert gone(servers, 60.0)
        assert "restarted (1 of 3)" in run(vllm, *with_vllm)
        finish(in_process, ours)
    theirs = records(vllm)
    here = records(ours)
    assert [record["step"] for record in theirs] == list(range(1, ITERATIONS + 1))
    for record in theirs:
        assert record["rollout/staleness"] == 0  # exactly on-policy
        assert record["episode/aborted"] == 0
        assert record["policy/behaviour_mismatch"] < 1e-4
    # 128 episodes an iteration: the standard error of the difference of two means of three
    # iterations is about 3.5%.
    for part in (slice(0, 3), slice(3, 6)):
        means = [
            np.mean([record["episode/success_rate"] for record in run[part]])
            for run in (theirs, here)
        ]
        assert abs(means[0] - means[1]) < 0.12, means
    assert (
        np.mean([r["episode/success_rate"] for r in theirs[3:]])
        > theirs[0]["episode/success_rate"] + 0.04
    )


def test_conversations_are_sampled_by_vllm_and_learnt_as_one_text(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path / "run",
        "--config.engine.name=vllm",
        "--config.env.prompt=chat_compact",
        "--config.sampling.max_prompt_tokens=200",
        "--config.engine.prefill_buckets=()",
        "--config.train.iterations=2",
        "--config.train.groups=4",
    )
    for record in records(tmp_path / "run"):
        assert record["episode/aborted"] == 0
        # The server read the same tokens, responses included.
        assert record["policy/behaviour_mismatch"] < 1e-4
        assert record["batch/tokens"] < 0.5 * record["batch/steps"] * record["prompt/length_mean"]


def test_vllm_samples_forks(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path / "run",
        "--config.engine.name=vllm",
        "--config.rl.algorithm=graph_values",
        "--config.env.anchor=state",
        "--config.train.iterations=2",
        "--config.train.groups=4",
        "--config.train.forks=3",
        "--config.train.save_rollouts=1",
    )
    for record in records(tmp_path / "run"):
        assert record["episode/aborted"] == 0
        assert record["policy/behaviour_mismatch"] < 1e-4
        assert record["rollout/forks"] > 0
    for path in sorted((tmp_path / "run/rollouts").iterdir()):
        episodes = read_rollouts(path).episodes
        assert any(episode.past for episode in episodes)
        # Replayed actions are no steps: nothing was sampled for them.
        assert all(step.tokens for episode in episodes for step in episode.steps)


def test_one_update_of_staleness_is_exactly_one_and_a_lost_server_leaves_a_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the server of somebody else; when that is killed the run stops, and continues with
    another one.
    """
    weights = tmp_path / "weights"
    logs = tmp_path / "logs"
    server, other = (serving.start(serving.TINY, logs, weights) for _ in range(2))
    monkeypatch.setenv("VLLM_API_KEY", serving.KEY)
    flags = [
        "--config.engine.name=vllm",
        f"--config.engine.weights_dir={weights}",
        "--config.train.max_staleness=1",
    ]
    flags += [
        "--config.train.iterations=5",
        "--config.train.groups=8",
        "--config.train.save_rollouts=1",
    ]
    workdir = tmp_path / "run"
    try:
        serving.wait_up(server)
        impatient = (
            f"--config.engine.urls={server.url}",
            "--config.engine.connect_timeout_s=3.0",
        )
        with running(workdir, *flags, *impatient) as process:
            wait_for(process, workdir, 3)
            serving.kill_hard(server)
            process.wait(LIMIT_S)
        if process.returncode:  # it may have finished before it needed the server again
            out = finish(process, workdir, 1)
            stopped = re.search(r"stopped in iteration (\d+): no server is left", out)
            assert stopped is not None, out
            assert (workdir / "checkpoints").is_dir()
            serving.wait_up(other)
            run(workdir, *flags, f"--config.engine.urls={other.url}")
    finally:
        server.stop()
        other.stop()
    every = records(workdir)
    assert [record["step"] for record in every] == [1, 2, 3, 4, 5]
    assert [record["rollout/staleness"] for record in every] == [0, 1, 1, 1, 1]
    for number in range(1, 6):
        (file,) = (workdir / "rollouts").glob(f"iteration_{number:06d}.*")
        versions = {
            step.version for episode in read_rollouts(file).episodes for step in episode.steps
        }
        assert versions == {max(number - 2, 0)}
    # Weights that are one update old give other log-probabilities; the learner sees and corrects
    # that.
    assert every[1]["policy/behaviour_mismatch"] > 10 * every[0]["policy/behaviour_mismatch"]


def test_a_run_that_cannot_get_its_server_is_one_line(tmp_path: pathlib.Path) -> None:
    absent = run(
        tmp_path / "a",
        "--config.engine.name=vllm",
        "--config.engine.vllm.python=/nowhere/python",
        status=2,
    )
    assert "gigpo_jax: config.engine.vllm.python='/nowhere/python'" in absent.splitlines()[-1]
    failing = run(
        tmp_path / "b",
        "--config.engine.name=vllm",
        "--config.engine.vllm.args=--no-such-flag",
        status=2,
    )
    assert "the server ended" in failing
    assert "no-such-flag" in failing
