"""The hosts of a run stop together.

A host that stopped alone would leave the others in a computation that waits for it. So before they compute together
each votes, and either all continue or all stop. The votes are in the key-value store of jax.distributed, which needs
no device and answers while a host plays its episodes. A host that waits in a computation for one that stopped comes
to no vote: a thread ends its process.
"""

import asyncio
import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import jax
from jax._src import distributed  # the store has no public name; Orbax uses this one too

from gigpo_jax.run import report

_T = TypeVar("_T")

WATCH_S = 1.0  # between two reads of the votes while this host works
STOP_LIMIT_S = 40.0  # for the votes of the others, once a host stops
GONE = "gigpo_jax/gone/"  # the hosts that gave up waiting for the votes of others
LAST_S = 5.0  # the first host, with the store, stays as much longer, and the others in a computation leave before


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

    def agree(self, stop: Stop | None = None) -> Stop | None:
        """What all hosts agree on: the reason to stop of the first host that has one, or None if all continue.

        With several hosts it cannot be called in an event loop.

        Args:
          stop: this host's reason; None if it has none.
        """
        if jax.process_count() == 1:
            return stop
        return asyncio.run(self._vote(stop))

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Stops the other hosts if the block fails, without a checkpoint: this host takes no part in it.

        If another host stops and this one comes to no vote in the block, its process ends.

        Raises:
          HostsStopped: the block failed after another host had stopped, as its computations with it do.
        """
        over = threading.Event()
        if jax.process_count() > 1:
            threading.Thread(target=self._watch, args=(over,), daemon=True).start()
        try:
            yield
        except HostsStopped:
            raise
        except BaseException as error:
            before = _agreed(self._votes()) if jax.process_count() > 1 else None
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self.agree(Stop(getattr(error, "status", 1), f"stopped: {text}", saves=False))
            if before is not None:
                if self._store.key_value_dir_get(GONE):
                    atexit.register(_leave, before.status)
                raise HostsStopped(before) from error
            raise
        finally:
            over.set()

    def _watch(self, over: threading.Event) -> None:
        """Ends the process once another host waits in vain for the vote of this one."""
        me, limit = jax.process_index(), STOP_LIMIT_S + (LAST_S if jax.process_index() == 0 else -LAST_S)
        since: float | None = None
        while not over.wait(WATCH_S):
            votes = self._votes()
            if me in votes or not (stop := _agreed(votes)):
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > limit:
                report.say(f"{stop.text}; host {me} waited for it")
                _leave(stop.status)

    async def _vote(self, vote: Stop | None) -> Stop | None:
        """Casts this host's vote; returns what all hosts agree on, None to continue.

        A vote counts whatever happens afterwards, so a cancellation waits for the others' votes. A host that got no
        answer votes again in the same round if it fails on its way out.
        """
        if jax.process_count() == 1:
            return vote
        words = json.dumps(asdict(vote)) if vote else ""
        self._store.key_value_set(f"{self._folder}{jax.process_index()}", words, allow_overwrite=True)
        began, stopped, cancelled = time.monotonic(), None, False
        while len(votes := self._votes()) < jax.process_count():
            now = time.monotonic()
            if (stop := _agreed(votes)) is not None:
                stopped = stopped or now
                if now - stopped > STOP_LIMIT_S:
                    self._store.key_value_set(f"{GONE}{jax.process_index()}", "", allow_overwrite=True)
                    atexit.register(_leave, stop.status)  # jax would wait for the others once more
                    missing = sorted(set(range(jax.process_count())) - votes.keys())
                    text = f"{stop.text}; no answer from hosts {missing}, so no checkpoint is written"
                    return replace(stop, text=text, saves=False)
            try:
                await asyncio.sleep(min(WATCH_S, max(0.01, (now - began) / 10)))
            except asyncio.CancelledError:
                cancelled = True
        self._round += 1
        if cancelled and _agreed(votes) is None:  # this host votes to stop the next time
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        return _agreed(votes)

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


def _agreed(votes: dict[int, Stop | None]) -> Stop | None:
    """What votes by host come to: the reason of the first one that stops."""
    stops = {host: stop for host, stop in sorted(votes.items()) if stop is not None}
    if not stops:
        return None
    host, first = next(iter(stops.items()))
    return replace(first, text=f"host {host} {first.text}", saves=all(stop.saves for stop in stops.values()))


def _leave(status: int) -> None:
    """Ends the process as it is."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
