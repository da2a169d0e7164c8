"""The servers of an engine: which one gets a request, and recovery of those that fail.

Everything runs in one event loop. A server gets requests only while it is "ready". Only `_recover` makes it ready,
after checking that it is up and has the wanted weights; it ends within `Limits`, so every waiter gets an answer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.base import EngineLost
from gigpo_jax.sampling.vllm.protocol import Limits, ServerFault
from gigpo_jax.sampling.vllm.server import Server, Weights

PAUSE_S = 0.5  # between two calls to a server that is not up
PROGRESS_S = 15.0  # between two progress messages
HANG_S = 60.0  # a server of this run that worked and stops answering is restarted after this time
PUSHES = 3  # a server is dropped after this many failed pushes in a row
FAILURES = 5  # a server that recovered more often than this without one response is restarted or dropped

Say = Callable[[str], None]
log = logging.getLogger(__name__)
_T = TypeVar("_T")


class ServerPool:
    """All servers of an engine."""

    def __init__(self, servers: list[Server], limits: Limits, say: Say):
        """Takes them over; nothing is started yet."""
        self.servers, self._limits, self._say = servers, limits, say
        self._wanted: Weights | None = None
        self._homes: dict[tuple[int, int], Server] = {}
        self._changed = asyncio.Condition()

    async def open(self, check: Callable[[Server], Awaitable[None]]) -> None:
        """Starts the servers of this run, waits until all answer, and checks each.

        Raises:
          InputError: a server does not come up, or `check` refuses it.
        """
        for server in self.servers:
            if server.process is not None:
                server.process.start()
        try:
            async with asyncio.TaskGroup() as group:
                for server in self.servers:
                    group.create_task(self._first(server, check))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def choose(self, session: tuple[int, int] | None) -> Server:
        """Returns the server of an episode, or the least loaded one; waits while all recover.

        Raises:
          EngineLost: no server is left.
        """
        async with self._changed:
            while True:
                self._require_one()
                ready = [server for server in self.servers if server.state == "ready"]
                if ready:
                    home = self._homes.get(session) if session is not None else None
                    if home is None or home.state != "ready":
                        home = min(ready, key=lambda server: server.load)
                    if session is not None:
                        self._homes[session] = home
                    return home
                await self._changed.wait()

    def report(self, server: Server, reason: str) -> None:
        """Takes a server out until it recovered; called for every failed request."""
        if server.state == "ready":
            server.failures += 1
            self._start_recovery(server, reason)

    def hold(self) -> None:
        """Makes recoveries wait for the next push, because the files of the last one are about to be deleted."""
        self._wanted = None

    async def push(self, weights: Weights) -> None:
        """Gives all servers new weights; on return each has them or is lost.

        Raises:
          EngineLost: all are lost.
        """
        self._wanted = weights
        self._homes.clear()
        for server in self.servers:
            if server.state == "ready" or (server.state == "recovering" and server.recovery is None):
                self._start_recovery(server, "gets new weights")
        await asyncio.gather(*(server.recovery for server in self.servers if server.recovery is not None))
        self._require_one()

    async def close(self) -> None:
        """Stops the servers of this run."""
        for server in self.servers:
            if server.recovery is not None:
                server.recovery.cancel()
        await asyncio.gather(*(asyncio.to_thread(server.process.stop) for server in self.servers if server.process))

    def _require_one(self) -> None:
        if all(server.state == "lost" for server in self.servers):
            reasons = "; ".join(f"{server.url}: {server.reason}" for server in self.servers)
            raise EngineLost(f"no vLLM server is left: {reasons}")

    async def _first(self, server: Server, check: Callable[[Server], Awaitable[None]]) -> None:
        try:
            limit_s = self._limits.start_s if server.process is not None else self._limits.connect_s
            await self._until_up(server, server.healthy, limit_s)
            await check(server)
        except ServerFault as err:
            fix = (
                f"see {server.process.log}"
                if server.process is not None
                else "start it or correct config.engine.vllm.urls"
            )
            raise InputError(f"{server.url}: {err}; {fix}") from err

    async def _until_up(self, server: Server, call: Callable[[], Awaitable[_T]], limit_s: float) -> _T:
        """Repeats a call until the server answers it.

        Raises:
          ServerFault: its process ended, or the limit has passed.
        """
        started = told = time.monotonic()
        while True:
            if server.process is not None and not server.process.running:
                raise ServerFault(f"the server ended: {server.process.log_tail()}")
            try:
                return await call()
            except ServerFault as err:
                now = time.monotonic()
                if now - started > limit_s:
                    raise ServerFault(f"not up within {limit_s:g} s ({err})") from err
            if now - told > PROGRESS_S:
                told = now
                where = f"; log: {server.process.log}" if server.process is not None else ""
                self._say(f"waiting for {server.url}, {now - started:.0f} s{where}")
            await asyncio.sleep(PAUSE_S)

    def _start_recovery(self, server: Server, reason: str) -> None:
        server.state, server.reason = "recovering", reason
        server.recovery = asyncio.get_running_loop().create_task(self._recover_or_drop(server))

    async def _recover_or_drop(self, server: Server) -> None:
        """Recovers a server; waiters are notified even if that raises."""
        try:
            await self._recover(server)
        except InputError as err:
            self._drop(server, str(err).removeprefix(f"{server.url}: "))
        except Exception as err:
            log.exception("recovery of %s failed", server.url)
            self._drop(server, f"{type(err).__name__}: {err}")
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _recover(self, server: Server) -> None:
        """Makes a server ready: up, restarted if need be, with the wanted weights; or drops it."""
        limit_s = HANG_S if server.process is not None else self._limits.connect_s
        failed_pushes = 0
        if server.failures > FAILURES:
            await self._restart_or_drop(server, f"failed {server.failures} times in a row: {server.reason}")
        while server.state == "recovering":
            try:
                label = await self._until_up(server, server.label, limit_s)
            except ServerFault as err:
                await self._restart_or_drop(server, str(err))
                limit_s = self._limits.start_s
                continue
            wanted = self._wanted
            try:
                if wanted is not None and label != wanted.label:
                    server.pushed = await server.push(wanted)
            except ServerFault as err:
                server.reason = str(err)
                failed_pushes = failed_pushes + 1 if wanted is self._wanted else 0
                if failed_pushes == PUSHES:
                    self._drop(server, server.reason)
            else:
                if wanted is not None and wanted is self._wanted:
                    server.state = "ready"
                    return
            await asyncio.sleep(PAUSE_S)

    async def _restart_or_drop(self, server: Server, reason: str) -> None:
        server.failures = 0
        if server.process is None or server.restarts >= self._limits.restarts:
            self._drop(server, reason)
            return
        server.restarts += 1
        self._say(f"{server.url}: {reason}; restarted ({server.restarts} of {self._limits.restarts})")
        await asyncio.to_thread(server.process.start)

    def _drop(self, server: Server, reason: str) -> None:
        server.state, server.reason = "lost", reason
        left = sum(other.state != "lost" for other in self.servers)
        self._say(f"{server.url}: dropped, {left} servers left: {reason}")
