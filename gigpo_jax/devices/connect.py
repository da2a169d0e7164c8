"""The connection of the hosts of a run."""

import os

import jax

from gigpo_jax.core.errors import InputError

# jax ends hosts with a stack trace once another one is silent for this time, sometimes for half of
# it. `run.host_votes` ends them before, after SILENT_S; this is for a host whose Python hangs.
LOST_S = 150
EXIT_S = 50  # at the end hosts wait for each other


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
