"""Signs of life of the hosts of a run: each counts in the store of jax.distributed.

jax has heartbeats too. A process that misses one ends with a stack trace and no name, so these find
a lost host before.
"""

import time
from typing import Any

import jax

# The kernel doubles the time between attempts to send: to 51 s at most after a partition of 45 s.
# More would not help: gRPC closes a connection whose ping was not answered for 60 s.
SILENT_S = 75.0
BEATS = "gigpo_jax/beats/"  # folder of the counts
LEFT = ""  # in place of the count of a host that has ended its work


class HostBeats:
    """The counts of all hosts, and when each last changed."""

    def __init__(self, store: Any) -> None:
        """Takes the client of the store; counts from now on."""
        self._store = store
        self._count = 0
        now = time.monotonic()
        self._counts = dict.fromkeys(range(jax.process_count()), "0")
        self._changed_at = dict.fromkeys(range(jax.process_count()), now)

    def exchange(self) -> None:
        """Counts on, and reads the counts of the other hosts.

        Raises:
          JaxRuntimeError: the first host, which has the store, is out of reach; after minutes.
        """
        self._count += 1
        self._write(str(self._count))
        for key, count in self._store.key_value_dir_get(BEATS):
            host = int(key.rpartition("/")[2])
            if count != self._counts[host] or count == LEFT:
                self._counts[host] = count
                self._changed_at[host] = time.monotonic()

    def leave(self) -> None:
        """Ends the counting of this host, which is not silent then; raises like `exchange`."""
        self._write(LEFT)

    def silent_host(self, limit_s: float = SILENT_S) -> int | None:
        """Returns the first host that gave no sign for this time; the store may not answer."""
        now = time.monotonic()
        for host, changed_at in self._changed_at.items():
            if now - changed_at > limit_s:
                return host
        return None

    def _write(self, count: str) -> None:
        self._store.key_value_set(f"{BEATS}{jax.process_index()}", count, allow_overwrite=True)
