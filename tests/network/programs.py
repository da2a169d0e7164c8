"""Learners and engine servers on the hosts of a network."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gigpo_jax.engines.jax_server.client import KEY
from gigpo_jax.engines.vllm.server import VllmServer
from tests.engines.jax_server.serving import PASSWORD
from tests.network.hosts import Network
from tests.processes import patience, wait_until
from tests.runs import CONFIG

LIMIT_S = patience(240)
START_S = 240  # vLLM on a CPU takes a minute
COORDINATOR_PORT = 9000
QUIET = {
    "TQDM_DISABLE": "1",
    "JAX_PLATFORMS": "cpu",
    KEY: PASSWORD,
    VllmServer.key_name: PASSWORD,
}

# Waits until a server listens.
WAIT = """
import socket, sys, time
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).close()
        break
    except OSError:
        time.sleep(0.5)
"""

Process = subprocess.Popen[str]


@dataclass
class Usage:
    """Descriptors, threads and MB of a process."""

    descriptors: int
    threads: int
    megabytes: float

    @classmethod
    def of(cls, process: Process) -> "Usage":
        folder = Path(f"/proc/{process.pid}")
        pages = int((folder / "statm").read_text().split()[1])
        return cls(
            len(list((folder / "fd").iterdir())),
            len(list((folder / "task").iterdir())),
            pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        )


def start_engine(network: Network, host: str, port: int, workdir: Path, *flags: str) -> Process:
    """Starts `gigpo engine` on all addresses of a host."""
    command = [sys.executable, "-m", "gigpo_jax", "engine", f"--config={CONFIG}", *flags]
    command += [f"--workdir={workdir}", "--config.serve.host=0.0.0.0"]
    return network.start(host, [*command, f"--config.serve.port={port}"], QUIET)


def wait_for_server(network: Network, host: str, server: str, port: int, process: Process) -> None:
    """Waits until a host reaches the port of a process on another one."""
    program = [sys.executable, "-c", WAIT, network.addresses[server], str(port)]
    waiter = network.start(host, program)
    assert wait_until(lambda: any(map(has_ended, (waiter, process))), START_S)
    assert not has_ended(process), process.communicate()
    assert waiter.returncode == 0, waiter.communicate()


def start_learners(
    network: Network,
    hosts: Sequence[str],
    workdir: Path,
    *flags: str,
    config: str = CONFIG,
    environments: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> list[Process]:
    """Starts the learners of one run, one on each of these hosts, which may be the same.

    `environments` has variables of single hosts.
    """
    command = [sys.executable, "-m", "gigpo_jax", "train", f"--config={config}", *flags]
    command.append(f"--workdir={workdir}")
    variables = {}
    if len(hosts) > 1:
        command += ["--config.distributed=True", f"--config.mesh.fsdp={len(hosts)}"]
        variables = {
            "JAX_COORDINATOR_ADDRESS": f"{network.addresses[hosts[0]]}:{COORDINATOR_PORT}",
            "JAX_NUM_PROCESSES": str(len(hosts)),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        }
    return [
        network.start(
            host,
            command,
            QUIET | variables | {"JAX_PROCESS_ID": str(index)} | dict(environments.get(host, {})),
        )
        for index, host in enumerate(hosts)
    ]


def has_ended(process: Process) -> bool:
    return process.poll() is not None


def end(processes: Sequence[Process], limit_s: float = LIMIT_S) -> list[tuple[int, str, str]]:
    """Waits for processes; returns status, output and errors of each."""
    deadline = time.monotonic() + limit_s
    ended = []
    for process in processes:
        out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        ended.append((process.returncode, out, err))
    return ended
