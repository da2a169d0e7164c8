"""A host whose coordinator is killed, and connections that stay silent."""

import os
import socket
import subprocess
import sys

from gigpo_jax.run.connect import LOST_S
from tests.processes import patience

LIMIT_S = patience(120)
PROGRAM = """
import os, socket, sys, time
from gigpo_jax.run.connect import USER_TIMEOUT, connect_hosts

connect_hosts()
timeouts = set()
for descriptor in os.listdir("/proc/self/fd"):
    try:
        with socket.socket(fileno=os.dup(int(descriptor))) as connection:
            timeouts.add(connection.getsockopt(*USER_TIMEOUT))
    except OSError:
        pass
print(max(timeouts), flush=True)
time.sleep(600)
"""


def test_a_host_whose_coordinator_is_killed_ends_with_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | variables | {"JAX_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        timeouts = []
        for host in hosts:
            assert host.stdout is not None
            timeouts.append(int(host.stdout.readline()))
        hosts[0].kill()
        out, err = hosts[1].communicate(timeout=LIMIT_S)
    finally:
        for host in hosts:
            host.kill()
            host.communicate()
    assert hosts[1].returncode == 1, err
    assert out == (
        "host 1 stopped: no sign of life from host 0; the same command continues after the newest "
        "checkpoint\n"
    )
    assert "stack trace" not in err, err
    assert "terminate" not in err, err
    # The kernel of the first host keeps connections that are silent for longer than gRPC's 20 s.
    assert timeouts == [LOST_S * 1000, 0], timeouts
