"""Whether processes run, and how long to wait for them."""

import os
import pathlib
import time
from collections.abc import Collection


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: Collection[int], within_s: float) -> bool:
    """Whether all these processes end within the limit."""
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def patience(seconds: float) -> float:
    """A time limit for an idle machine, longer on one that other work shares."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
