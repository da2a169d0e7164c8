"""Whether processes run, and how long to wait for them and for other things."""

import os
import pathlib
import time
from collections.abc import Callable, Collection


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: Collection[int], within_s: float) -> bool:
    """Whether all these processes end within the limit."""
    return wait_until(lambda: not any(map(alive, pids)), within_s)


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether a condition comes true within the `patience` of a limit."""
    start = time.monotonic()
    while not condition():
        # The load may rise meanwhile: the limit is asked for anew.
        if time.monotonic() - start > patience(within_s):
            return False
        time.sleep(0.02)
    return True


def patience(seconds: float) -> float:
    """A time limit for an idle machine, longer on one that other work shares."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
