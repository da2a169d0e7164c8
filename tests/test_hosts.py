"""Statistics over two hosts with unequal shares equal the statistics of one host with everything.

Each host is a process.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gigpo_jax.run.hosts import Hosts, Stop
from tests import two_hosts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def test_credit_and_panel_of_two_hosts_are_those_of_one_and_they_stop_together() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    hosts = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "two_hosts.py"), str(index), port],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        first, second = (
            json.loads(host.communicate(timeout=240)[0].splitlines()[-1]) for host in hosts
        )
    finally:
        for host in hosts:
            host.kill()
    assert first["votes"] == ["cancelled", "host 1 stopped", "host 1 stopped"], (
        "a vote counts, then the signal"
    )
    assert second["votes"] == ["continues", *["host 1 stopped", "continues"] * 2]
    ended = ["host 1 stopped", True]
    assert first["ahead"] == ended, "a rollout beside an update ends when another host stops"
    unanswered = "no answer from hosts [1], so no checkpoint is written"
    assert first["unanswered"] == [
        f"host 0 {reason}; {unanswered}" for reason in ("stopped", "failed then")
    ]
    assert first["refused"] == second["refused"], "hosts plan with the least memory"
    assert ": a device has 2.0 GiB, " in first["refused"]
    one = two_hosts.found(range(5))
    assert first["advantages"] + second["advantages"] == one["advantages"]
    assert first["credit"] == second["credit"] == one["credit"]
    assert first["lessons"] == second["lessons"] == one["lessons"]
    assert len({tuple(lesson["place"]) for lesson in one["lessons"]}) > 5
    assert first["states"] == second["states"] == one["states"]
    assert len({entry["task"] for entry in one["states"]}) == 5
    assert first["trials"] == second["trials"] == one["trials"]
    assert first["panel"] == second["panel"] == one["panel"]


def test_a_single_host_agrees_with_itself_inside_an_event_loop() -> None:
    async def main(stop: Stop | None) -> Stop | None:
        return Hosts().agree(stop)

    for stop in (None, Stop(143, "stopped")):
        assert asyncio.run(main(stop)) is stop
