"""An endpoint on a network with a stranger, who has no key, or repeats what others sent."""

import json
import sys
from pathlib import Path

from tests.network.hosts import Network
from tests.network.intrusion import check_strangers
from tests.network.programs import LIMIT_S, PASSWORD, QUIET, end, wait_for_server
from tests.runs import CONFIG

PORT = 8000
EPISODES = 4
VISITOR = str(Path(__file__).with_name("visitor.py"))


def test_a_stranger_is_refused_and_repeats_add_no_episode(tmp_path: Path, flags: list[str]) -> None:
    sent = tmp_path / "sent.json"
    with Network(tmp_path, ("endpoint", "client", "stranger")) as network:
        address = f"{network.addresses['endpoint']}:{PORT}"
        command = [sys.executable, "-m", "gigpo_jax", "serve", f"--config={CONFIG}", *flags]
        command += ["--initial", f"--workdir={tmp_path / 'run'}"]
        command += ["--config.serve.host=0.0.0.0", f"--config.serve.port={PORT}"]
        server = network.start("endpoint", command, QUIET)
        wait_for_server(network, "client", "endpoint", PORT, server)

        def visit(host: str, key: str, episodes: int) -> str:
            words = [VISITOR, address, key, str(episodes), str(sent)]
            ((status, out, err),) = end([network.start(host, [sys.executable, *words])], LIMIT_S)
            assert status == 0, err
            return out

        visit("client", PASSWORD, 1)  # what a first request needs stays in memory
        check_strangers(network, "endpoint", [server], [address])
        visit("client", PASSWORD, EPISODES)
        requests = json.loads(sent.read_text())
        assert [request["status"] for request in requests] == [200] * 4 * EPISODES
        # What went over the cable once more, with no key, a wrong one, and the right one.
        for key in ("", "wrong"):
            assert set(json.loads(visit("stranger", key, 0))) == {401}
        # Sessions of its own, without a call: those of the client have ended.
        assert json.loads(visit("stranger", PASSWORD, 0)) == [200, 404, 404, 404] * EPISODES
        server.terminate()
        ((status, out, err),) = end([server])
    assert status == 0, (out, err)
    assert "Traceback" not in err
    lines = (tmp_path / "run" / "sessions.jsonl").read_text().splitlines()
    episodes = {json.loads(line)["session"] for line in lines}
    assert len(episodes) == len(lines) == 1 + EPISODES
    assert episodes >= {request["answer"]["id"] for request in requests[::4]}
