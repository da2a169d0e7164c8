"""A learner and an engine server with weights in flight, stopped on the way."""

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.engines.jax_server.client import KEY
from gigpo_jax.rollout.read_record import read_rollouts
from tests.engines.jax_server import serving
from tests.engines.vllm.serving import ROOT
from tests.metrics import records
from tests.runs import wait_for_iteration

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

LIMIT_S = 900
ITERATIONS = 8
STALENESS = 2
FLAGS = (
    "--config=quickstart",
    "--config.engine.decode_steps=1",
    f"--config.train.max_staleness={STALENESS}",
    "--config.train.inflight=True",
    f"--config.train.iterations={ITERATIONS}",
    "--config.train.groups=4",
    "--config.train.save_rollouts=1",
    "--config.checkpoint.every=2",
    "--config.env.workers=1",
    "--config.eval.panel=",
)


def test_tokens_are_of_several_versions_and_none_is_older_than_the_bound(
    tmp_path: pathlib.Path,
) -> None:
    workdir = tmp_path / "run"
    # The learner's config, which the server takes too.
    with serving.server(tmp_path, base=FLAGS) as server:
        command = [sys.executable, "-m", "gigpo_jax", "train", *FLAGS, f"--workdir={workdir}"]
        command += ["--config.engine.name=jax_server", f"--config.engine.urls={server.url}"]
        for status in (143, 0):
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | {KEY: serving.PASSWORD},
            )
            try:
                if status:
                    wait_for_iteration(process, workdir, 3)
                    process.send_signal(signal.SIGTERM)
                output = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
            assert process.returncode == status, output
    steps = records(workdir)[1:]
    assert [step["step"] for step in steps] == [*range(1, ITERATIONS + 1)]
    assert max(step["rollout/staleness"] for step in steps) <= STALENESS
    mixed = 0
    for number, step in enumerate(steps):
        (path,) = (workdir / "rollouts").glob(f"iteration_{number + 1:06d}.*")
        responses = [step for episode in read_rollouts(path).episodes for step in episode.steps]
        oldest = min(response.version for response in responses)
        assert step["rollout/staleness"] == number - oldest
        for response in responses:
            if response.versions is not None:
                mixed += 1
                assert len(response.versions) == len(response.tokens)
                assert response.versions[0] == response.version < response.versions[-1] <= number
                assert np.all(np.diff(response.versions) >= 0)
    assert mixed
