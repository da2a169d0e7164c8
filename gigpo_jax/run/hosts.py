"""Stops the hosts of a run together: here for one host, in `run.host_votes` for several."""

import contextlib
import importlib
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

import jax

_T = TypeVar("_T")


@dataclass(frozen=True)
class Stop:
    """Reason why hosts stop.

    Attributes:
      status: Exit status.
      text: Message of one line.
      saves: Whether all hosts can still write a checkpoint together.
    """

    status: int
    text: str
    saves: bool = True


class HostsStopped(Exception):
    """The stop of a host, raised at the same place by all hosts that do not vote there."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.text)
        self.stop = stop


class Hosts:
    """The only host of a run, which asks no other one."""

    async def share(self, work: Awaitable[_T]) -> _T:
        """Awaits this host's share until all hosts are done.

        All hosts must call it, in the same order.

        Raises:
          HostsStopped: another host stops; the work is cancelled.
        """
        return await work

    async def stop(self, stop: Stop) -> Stop:
        """Stops all hosts; returns the reason of the first host, in their order, that has one."""
        return stop

    def agree(self, stop: Stop | None = None) -> Stop | None:
        """Returns the first host's reason to stop; None to continue.

        With several hosts it cannot be called in an event loop.

        Args:
          stop: Reason of this host; None if it has none.
        """
        return stop

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Stops the other hosts if the block fails; they make no checkpoint then.

        If another host stops and this one does not vote in the block, its process ends.

        Raises:
          HostsStopped: the block failed after another host had stopped; a stopped host makes
            computations with it fail.
        """
        yield


def open_hosts() -> Hosts:
    """The hosts of this run."""
    if jax.process_count() == 1:
        return Hosts()
    # By name: a run of one host has no votes.
    return cast(Hosts, importlib.import_module("gigpo_jax.run.host_votes").HostVotes())
