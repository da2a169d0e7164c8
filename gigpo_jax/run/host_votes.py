"""The votes of several hosts, which stop together.

A host that stopped alone would leave the others in a computation that waits for it. So before they
compute together each votes, and either all continue or all stop. The votes are in the key-value
store of jax.distributed, which needs no device and answers while a host plays its episodes. A host
that waits in a computation for one that stopped comes to no vote: a thread ends its process, and so
does another one if a host gives no sign of life.
"""

import asyncio
import atexit
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Iterator
from dataclasses import asdict, replace
from typing import Any, TypeVar

import jax
from jax._src import distributed  # the store has no public name; Orbax uses this one too

from gigpo_jax.run.host_beats import HostBeats
from gigpo_jax.run.host_loss import describe_loss, leave_run
from gigpo_jax.run.hosts import Hosts, HostsStopped, Stop

_T = TypeVar("_T")

WATCH_S = 1.0  # time between two reads of the votes while this host works
STOP_LIMIT_S = 40.0  # time for the votes of the others, once a host stops
GONE = "gigpo_jax/gone/"  # folder of hosts that gave up waiting for the votes of others
# The first host has the store. It stays this much longer than STOP_LIMIT_S, and the others that
# are in a computation leave this much earlier.
LAST_S = 5.0


class HostVotes(Hosts):
    """The votes of this host and of the others."""

    def __init__(self) -> None:
        self._round = 0

    async def share(self, work: Awaitable[_T]) -> _T:
        """Awaits this host's share of work until all hosts are done with theirs.

        All hosts must call it, in the same order.

        Raises:
          HostsStopped: another host stops; the work is cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            # `wait`, because `wait_for` would cancel the work at its time limit.
            while not task.done() and not any(self._votes().values()):
                await asyncio.wait({task}, timeout=WATCH_S)
            if task.done():
                task.result()  # raises what it failed with, and this host votes to stop
        finally:
            # Also after an error of the store or a cancellation of this host: work must not go on
            # unseen.
            task.cancel()
            # `wait` raises nothing of the task; its error was raised above, or another host's
            # reason counts.
            await asyncio.wait({task})
        # This host has ended its work, or another one stops. A vote to continue is right in both
        # cases: the result below is used only if all voted so.
        stop = await self._vote(None)
        if stop is not None:
            raise HostsStopped(stop)
        return task.result()

    async def stop(self, stop: Stop) -> Stop:
        """Stops all hosts and returns the reason of the first host, by number, that has one."""
        return await self._vote(stop) or stop

    def agree(self, stop: Stop | None = None) -> Stop | None:
        """Returns the first host's reason to stop, or None; several hosts call it in no event loop.

        Args:
          stop: Reason of this host; None if it has none.
        """
        return asyncio.run(self._vote(stop))

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Stops the other hosts, without a checkpoint, if the block fails.

        If another host stops and this one does not vote in the block, this process ends.

        Raises:
          HostsStopped: the block failed after another host had stopped; a stopped host makes
            computations with it fail.
        """
        block_end = threading.Event()
        beats = HostBeats(self._store)
        for watch in (self._watch, self._watch_silence):
            threading.Thread(target=watch, args=(block_end, beats), daemon=True).start()
        try:
            yield
        # All hosts have voted already.
        except HostsStopped:
            raise
        # KeyboardInterrupt and SystemExit too: the others wait for this host whatever ended it.
        except BaseException as error:
            host = jax.process_index()
            # Read before this host votes. If another host had stopped already, this error is a
            # consequence.
            try:
                earlier_stop = _agreed(self._votes())
            # The first host is gone, and its store with it.
            except jax.errors.JaxRuntimeError:
                if host == 0:
                    raise error from None
                leave_run(1, describe_loss(host, 0))
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self.agree(Stop(getattr(error, "status", 1), f"stopped: {text}", saves=False))
            if earlier_stop is not None:
                # A host that gave up is on its way out. jax's exit handler would wait for it.
                if self._store.key_value_dir_get(GONE):
                    atexit.register(leave_run, earlier_stop.status)
                raise HostsStopped(earlier_stop) from error
            # A computation with a lost host fails; its traceback would not name the host. One that
            # only waits in a computation still counts, until it leaves.
            lost = beats.silent_host(STOP_LIMIT_S / 2)
            if lost is not None:
                raise HostsStopped(Stop(1, describe_loss(host, lost), saves=False)) from error
            raise
        finally:
            block_end.set()

    def _watch(self, block_end: threading.Event, beats: HostBeats) -> None:
        """Counts, and ends the process once another host waits in vain for the vote of this one."""
        host = jax.process_index()
        limit = STOP_LIMIT_S + (LAST_S if host == 0 else -LAST_S)
        stopped_at: float | None = None
        while not block_end.wait(WATCH_S):
            try:
                beats.exchange()
                votes = self._votes()
            # The first host is out of reach, perhaps not for long.
            except jax.errors.JaxRuntimeError:
                continue
            stop = _agreed(votes)
            # This host has voted in this round, so nobody waits for it.
            if host in votes or stop is None:
                stopped_at = None
            elif stopped_at is None:
                stopped_at = time.monotonic()
            elif time.monotonic() - stopped_at > limit:
                text = f"{stop.text}; host {host} waited for it"
                leave_run(stop.status, text if host == 0 else "")
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            beats.leave()

    def _watch_silence(self, block_end: threading.Event, beats: HostBeats) -> None:
        """Ends the process once another host gives no sign of life."""
        host = jax.process_index()
        while not block_end.wait(WATCH_S):
            silent = beats.silent_host()
            if silent is not None:
                # The store ends with the first host, and jax the others with a stack trace then.
                time.sleep(LAST_S if host == 0 else 0)
                # On every host: each may be the one that the others lost.
                leave_run(1, describe_loss(host, silent))

    async def _vote(self, vote: Stop | None) -> Stop | None:
        """Casts this host's vote; returns what all hosts agree on.

        None means to continue. A vote counts whatever happens afterwards, so a cancellation waits
        for the others' votes. A host that got no answer votes again in the same round if it fails
        on its way out.
        """
        # Votes go through the store of jax.distributed, over TCP: a collective on the devices would
        # wait for ever for a host that is gone.
        # "" is a vote to continue.
        words = json.dumps(asdict(vote)) if vote else ""
        self._store.key_value_set(
            # Overwriting: a host that got no answer may vote again in the same round, with a reason
            # to stop.
            f"{self._folder}{jax.process_index()}",
            words,
            allow_overwrite=True,
        )
        started = time.monotonic()
        stopped_at: float | None = None
        cancelled = False
        # While all continue this wait has no limit of its own: a host may play for hours. It ends
        # when the last host votes; if one is lost, `_watch_silence` ends this
        # process.
        while len(votes := self._votes()) < jax.process_count():
            now = time.monotonic()
            # Only a stop starts the clock: a host that works sees it within WATCH_S, so 40 s
            # without its vote mean that it waits in a computation, or hangs.
            if (stop := _agreed(votes)) is not None:
                stopped_at = stopped_at or now
                if now - stopped_at > STOP_LIMIT_S:
                    self._store.key_value_set(
                        f"{GONE}{jax.process_index()}", "", allow_overwrite=True
                    )
                    # At exit jax would wait for the others once more.
                    atexit.register(leave_run, stop.status)
                    missing = sorted(set(range(jax.process_count())) - votes.keys())
                    text = (
                        f"{stop.text}; no answer from hosts {missing}, so no checkpoint is written"
                    )
                    return replace(stop, text=text, saves=False)
            # Short pauses at first, because hosts mostly vote together; longer ones later, because
            # each pause ends with a question to the store.
            try:
                await asyncio.sleep(min(WATCH_S, max(0.01, (now - started) / 10)))
            except asyncio.CancelledError:
                # Swallowed for now: this host's vote counts already, and the others rely on it.
                cancelled = True
        # The next votes go to another folder, so a fast host cannot disturb one that still reads
        # these.
        self._round += 1
        if cancelled and _agreed(votes) is None:  # this host votes to stop the next time
            task = asyncio.current_task()
            assert task is not None
            # Cancels the caller's next await; it then stops, and votes so.
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
        entries = self._store.key_value_dir_get(self._folder)
        return {
            int(key.rpartition("/")[2]): Stop(**json.loads(words)) if words else None
            for key, words in entries
        }


def _agreed(votes: dict[int, Stop | None]) -> Stop | None:
    """The reason of the first host that stops, or None."""
    # Sorted by host: every host finds the same reason, whatever order the store lists votes in.
    stops = {host: stop for host, stop in sorted(votes.items()) if stop is not None}
    if not stops:
        return None
    host, first = next(iter(stops.items()))
    return replace(
        # One host that cannot save is enough: a checkpoint is written by all together.
        first,
        text=f"host {host} {first.text}",
        saves=all(stop.saves for stop in stops.values()),
    )
