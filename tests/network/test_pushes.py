"""Pushes that a network cuts, repeats or delays: an engine server never has parts of two versions."""

import json
import sys
from pathlib import Path

from tests.engines.jax_server import serving
from tests.network.hosts import Network
from tests.network.programs import LIMIT_S, PASSWORD, QUIET, end

PORT = 8000
LABEL = """
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1] + "/weight_info", headers={"Authorization": sys.argv[2]})
print(json.load(urllib.request.urlopen(request, timeout=30))["weight_version"])
"""


def test_a_server_has_one_version_through_half_a_push_a_repeated_and_an_older_one(
    tmp_path: Path,
) -> None:
    with Network(tmp_path, ("learner", "engine")) as network:
        url = f"http://{network.addresses['engine']}:{PORT}"
        flags = [*serving.FLAGS, "--config.serve.host=0.0.0.0", f"--config.serve.port={PORT}"]
        command = [sys.executable, "-m", "gigpo_jax", "engine", *flags]
        server = network.start("engine", [*command, f"--workdir={tmp_path / 'engine'}"], QUIET)
        program = [sys.executable, "-m", "tests.network.pushes"]

        def label() -> str:
            read = [sys.executable, "-c", LABEL, url, f"Bearer {PASSWORD}"]
            ((status, out, err),) = end([network.start("learner", read)])
            assert status == 0, err
            return out.strip()

        half = network.start("learner", [*program, "half", url, str(tmp_path / "half")], QUIET)
        assert half.stdout is not None
        assert half.stdout.readline() == "a third\n", half.communicate()
        # The learner is gone, and the server does not hear of it.
        network.cut("learner")
        half.kill()
        network.join("learner")
        # The weights of the last complete push.
        assert label().endswith(":0")
        whole = network.start("learner", [*program, "whole", url, str(tmp_path / "whole")], QUIET)
        ((status, out, err),) = end([whole], LIMIT_S)
        assert status == 0, err
        found = json.loads(out.splitlines()[-1])
        server.terminate()
        ((status, out, err),) = end([server])
        assert status == 0, (out, err)
        assert "Traceback" not in err
    assert {version for _, _, version in found["first"]} == {0}
    assert {version for _, _, version in found["second"]} == {1}
    assert found["first"] != [[*response[:2], 0] for response in found["second"]]
    assert found["label after a repetition"] == "1"
    assert found["repeated"] == found["second"]
    # The label is that of the weights, so the learner takes nothing from them, and pushes again.
    assert found["label after an older push"] == "0"
    assert found["after an older push"] == found["second"]
    assert found["retries"] >= 8
