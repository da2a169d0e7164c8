"""The in-process engine on several devices and hosts gives the responses of one device."""

import os
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def equal(pytestconfig, devices: int, *programs: tuple[str, ...]) -> list[bool]:
    """Whether `sharded_engine.py`, started with each of these arguments, finds the responses of one
    device.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.engines.jax.sharded_engine", *arguments],
            env=os.environ
            | {
                "JAX_NUM_CPU_DEVICES": str(devices),
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": "",  # the flags of tests round bfloat16 differently for each sharding
            },
            cwd=pytestconfig.rootpath,
            stdout=subprocess.PIPE,
            text=True,
        )
        for arguments in programs
    ]
    try:
        return [
            process.communicate(timeout=280)[0].strip().endswith("equal") for process in started
        ]
    finally:
        for process in started:
            process.kill()


def test_eight_devices_give_the_responses_of_one(pytestconfig):
    assert equal(pytestconfig, 8, ("mesh",)) == [True]


@pytest.mark.parametrize(
    ("program", "devices"), [("host", 2), pytest.param("pictures", 4, marks=pytest.mark.long)]
)
def test_two_hosts_give_the_responses_of_one_device(pytestconfig, program, devices):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    assert equal(pytestconfig, devices, (program, "0", port), (program, "1", port)) == [True, True]
