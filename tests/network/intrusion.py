"""Servers that strangers disturb: every request is refused, and nothing of it stays behind."""

import json
import sys
import time
from pathlib import Path

from tests.network.hosts import Network
from tests.network.programs import Process, Usage


def check_strangers(
    network: Network, kind: str, processes: list[Process], addresses: list[str], *others: str
) -> None:
    """Lets the host "stranger" disturb servers for two rounds.

    Args:
      network: Network.
      kind: Kind of the servers, for `stranger.py`.
      processes: Processes whose descriptors, threads and memory must not grow.
      addresses: Addresses of servers.
      others: Addresses of ports that ask for no key.
    """
    before = [Usage.of(process) for process in processes]
    program = [sys.executable, str(Path(__file__).with_name("stranger.py")), kind]
    ports = filter(None, [",".join(addresses), ",".join(others)])
    stranger = network.start("stranger", [*program, *ports])
    assert stranger.stdout is not None
    rounds = [json.loads(stranger.stdout.readline()) for _ in range(2)]
    disturbed = [Usage.of(process) for process in processes]
    stranger.kill()
    for statuses in rounds:
        # Every request was answered, and refused.
        assert list(statuses) == addresses, rounds
        assert {status for answers in statuses.values() for status in answers} == {401}, rounds
    # Closed connections take a moment.
    deadline = time.monotonic() + 30
    while True:
        after = [Usage.of(process) for process in processes]
        is_over = all(
            now.descriptors <= then.descriptors + 100 and now.threads <= then.threads + 100
            for now, then in zip(after, before, strict=True)
        )
        if is_over or time.monotonic() > deadline:
            break
        time.sleep(1)
    told = f"{before}, {disturbed}, {after}"
    print(told)
    assert is_over, told
    for now, then in zip(disturbed, before, strict=True):
        assert now.megabytes < then.megabytes + 100, told
