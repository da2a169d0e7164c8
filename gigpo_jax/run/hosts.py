"""The hosts of a run stop together.

A host that stopped alone would leave the others in a computation that waits for it. So before they compute together
each votes, and either all continue or all stop. The votes are in the key-value store of jax.distributed, which needs
no device and answers while a host plays its episodes.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import jax
from jax._src import distributed  # the store has no public name; Orbax uses this one too

_T = TypeVar("_T")

WATCH_S = 1.0  # between two reads of the votes while this host works
STOP_LIMIT_S = 50.0  # for the votes of the others, once this host stops


@dataclass(frozen=True)
class Stop:
    """Why the hosts stop.

    Attributes:
      status: the exit status.
      text: one line.
      saves: whether all of them can still write a checkpoint together.
    """

    status: int
    text: str
    saves: bool = True


class HostsStopped(Exception):
    """A host stops; all hosts raise this at the same place, or vote there themselves."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.text)
        self.stop = stop


class Hosts:
    """The votes of one run; on a single host there is nothing to agree on."""

    def __init__(self) -> None:
        self._round = 0

    async def share(self, work: Awaitable[_T]) -> _T:
        """The result of this host's share of some work, as soon as all hosts are done with theirs.

        All hosts must call it, in the same order.

        Raises:
          HostsStopped: another host stops; the work is cancelled.
        """
        if jax.process_count() == 1:
            return await work
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not any(self._votes().values()):
                await asyncio.wait({task}, timeout=WATCH_S)
            if task.done():
                task.result()  # raises what it failed with, and this host votes to stop
        finally:
            task.cancel()
            await asyncio.wait({task})
        stop = await self._vote(None)
        if stop is not None:
            raise HostsStopped(stop)
        return task.result()

    async def stop(self, stop: Stop) -> Stop:
        """Stops all hosts; returns what they agree on: the reason of the first host, in their order, that has one."""
        return await self._vote(stop) or stop

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Stops the other hosts if the block fails, without a checkpoint: this host takes no part in it."""
        try:
            yield
        except HostsStopped:
            raise
        except BaseException as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            asyncio.run(self.stop(Stop(getattr(error, "status", 1), f"stopped: {text}", saves=False)))
            raise

    async def _vote(self, vote: Stop | None) -> Stop | None:
        """Casts this host's vote; returns what all hosts agree on, None to continue.

        A vote counts whatever happens afterwards, so a cancellation waits for the others' votes.
        """
        if jax.process_count() == 1:
            return vote
        words = json.dumps(asdict(vote)) if vote else ""
        self._store.key_value_set(f"{self._folder}{jax.process_index()}", words)
        began, cancelled = time.monotonic(), False
        while len(votes := self._votes()) < jax.process_count():
            waited = time.monotonic() - began
            if vote is not None and waited > STOP_LIMIT_S:
                missing = sorted(set(range(jax.process_count())) - votes.keys())
                text = f"{vote.text}; no answer from hosts {missing}, so no checkpoint is written"
                return replace(vote, text=text, saves=False)
            try:
                await asyncio.sleep(min(WATCH_S, max(0.01, waited / 10)))
            except asyncio.CancelledError:
                cancelled = True
        self._round += 1
        stops = {host: found for host, found in sorted(votes.items()) if found is not None}
        if not stops:
            if cancelled:  # this host votes to stop the next time
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            return None
        host, first = next(iter(stops.items()))
        return replace(first, text=f"host {host} {first.text}", saves=all(stop.saves for stop in stops.values()))

    @property
    def _store(self) -> Any:
        return distributed.global_state.client

    @property
    def _folder(self) -> str:
        return f"gigpo_jax/votes/{self._round}/"

    def _votes(self) -> dict[int, Stop | None]:
        """The votes of this round so far, by host."""
        found = self._store.key_value_dir_get(self._folder)
        return {int(key.rpartition("/")[2]): Stop(**json.loads(words)) if words else None for key, words in found}
