"""A run whose rollouts come from a vLLM server on another host."""

from pathlib import Path

import pytest

from tests.engines.vllm.serving import MAX_LENGTH, PYTHON, TINY
from tests.metrics import records
from tests.network.hosts import Network
from tests.network.programs import QUIET, end, start_learners, wait_for_server

PORT = 8000


@pytest.mark.skipif(not PYTHON.exists(), reason="vLLM is not installed: make vllm-venv")
def test_a_learner_trains_with_a_vllm_server_on_another_host(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    with Network(tmp_path, ("learner", "engine")) as network:
        address = network.addresses["engine"]
        # On a CPU vLLM has no kernel for the heads of the other tests' model.
        command = ["launch/vllm_sidecar.sh", "--model", str(TINY), "--weights-dir", str(weights)]
        command += ["--gpus", "none", "--host", address, "--port", str(PORT), "--dtype", "float32"]
        command += ["--max-length", str(MAX_LENGTH), "--sequences", "16", "--cache-gib", "1"]
        sidecar = network.start("engine", command, QUIET)
        wait_for_server(network, "learner", "engine", PORT, sidecar)
        (learner,) = start_learners(
            network,
            ["learner"],
            tmp_path / "run",
            "--config.train.iterations=2",
            "--config.train.groups=2",
            "--config.train.minibatch=64",
            "--config.env.workers=1",
            "--config.eval.panel=",
            "--config.engine.name=vllm",
            f"--config.engine.urls=http://{address}:{PORT}",
            f"--config.engine.weights_dir={weights}",
            config="quickstart",
        )
        (ended,) = end([learner])
        sidecar.terminate()
        (server,) = end([sidecar])
    assert (ended[0], server[0]) == (0, 143), (ended, server)
    _, first, second = records(tmp_path / "run")
    for record in (first, second):
        assert record["rollout/staleness"] == 0
        assert record["episode/aborted"] == 0
        assert record["policy/behaviour_mismatch"] < 1e-4
