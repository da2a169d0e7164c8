"""The connection of the hosts of a run."""

import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed  # initialize() takes no callback for a lost coordinator

from gigpo_jax.core.errors import InputError
from gigpo_jax.run.host_loss import end_with_coordinator

# jax ends hosts with a stack trace once another one is silent for this time, sometimes for half of
# it. `run.host_votes` ends them before, after SILENT_S; this is for a host whose Python hangs.
LOST_S = 200
EXIT_S = 50  # at the end hosts wait for each other
DESCRIPTORS = Path("/proc/self/fd")  # of Linux
USER_TIMEOUT = (socket.IPPROTO_TCP, 18)  # TCP_USER_TIMEOUT of Linux, in milliseconds


def connect_hosts() -> None:
    """Connects the hosts of a run.

    It comes before any other use of jax. On clusters that jax does not detect (it detects TPU pods,
    Slurm and others), the environment variables JAX_COORDINATOR_ADDRESS (host:port),
    JAX_NUM_PROCESSES and JAX_PROCESS_ID are needed.

    Raises:
      InputError: the hosts do not find each other.
    """
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    # None where a variable is not set: jax then asks the cluster.
    address, *numbers = (os.environ.get(name) for name in names)
    count, index = (None if value is None else int(value) for value in numbers)
    try:
        # jax's preemption service would take SIGTERM, which run/host_votes.py handles.
        jax.config.update("jax_enable_preemption_service", False)
        with _end_with_coordinator():
            jax.distributed.initialize(
                address,
                count,
                index,
                initialization_timeout=300,
                heartbeat_timeout_seconds=LOST_S,
                shutdown_timeout_seconds=EXIT_S,
            )
    except (RuntimeError, ValueError) as err:
        variables = ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in names)
        reason = (str(err).splitlines() or [""])[0]
        raise InputError(
            f"{reason} ({variables})",
            key="config.distributed",
            value="True",
            fix="set all three, on every host",
        ) from err
    _keep_silent_connections()


@contextlib.contextmanager
def _end_with_coordinator() -> Iterator[None]:
    """Replaces the callback of clients that are made in the block; the first host keeps jax's."""
    make_client = distributed._jax.get_distributed_runtime_client

    @functools.wraps(make_client)
    def make_ending_client(address: str, host: int, **settings: Any) -> Any:
        if host:
            settings["missed_heartbeat_callback"] = end_with_coordinator(host)
        return make_client(address, host, **settings)

    distributed._jax.get_distributed_runtime_client = make_ending_client
    try:
        yield
    finally:
        distributed._jax.get_distributed_runtime_client = make_client


def _keep_silent_connections() -> None:
    """Lets the first host, which has the store, keep connections that are silent.

    gRPC lets the kernel of a server close a connection whose packets were not acknowledged for
    20 s, and has no setting for it in jax.
    """
    if distributed.global_state.service is None or not DESCRIPTORS.exists():
        return
    for descriptor in DESCRIPTORS.iterdir():
        # Closed meanwhile, or a socket of another kind.
        with contextlib.suppress(OSError):
            if not os.readlink(descriptor).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                if connection.getsockopt(*USER_TIMEOUT):
                    connection.setsockopt(*USER_TIMEOUT, LOST_S * 1000)
