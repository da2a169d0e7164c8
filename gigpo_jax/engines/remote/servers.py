"""The servers of an engine: distribution of requests, and recovery of servers that fail.

Everything runs in one event loop. A server gets requests only while it is "ready". Only `_recover`
makes it ready, after checking that it is up and has the newest weights; it ends within `Limits`, so
every waiter gets an answer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.engines.remote.protocol import Limits, ServerFault
from gigpo_jax.engines.remote.server import PushedWeights, Server

PAUSE_S = 0.5  # between two calls to a server that is not up
PROGRESS_S = 15.0  # between two progress messages
HANG_S = 60.0  # a server of this run that worked and stops answering is restarted after this time
PUSHES = 3  # a server is dropped after this many failed pushes in a row
# A server that recovered more often than this without one response is restarted or dropped.
FAILURES = 5

Say = Callable[[str], None]
log = logging.getLogger(__name__)
_T = TypeVar("_T")


class ServerPool:
    """All servers of an engine."""

    def __init__(self, servers: list[Server], limits: Limits, say: Say):
        """Stores the servers; starts nothing yet."""
        self.servers = servers
        self._limits = limits
        self._say = say
        # The weights that all servers must have; None between two pushes.
        self._target_weights: PushedWeights | None = None
        self._session_servers: dict[tuple[int, int], Server] = {}
        self._changed = asyncio.Condition()

    async def open(self, check: Callable[[Server], Awaitable[None]]) -> None:
        """Starts this run's servers, then waits for and checks all.

        Raises:
          InputError: A server does not come up, or `check` refuses it.
        """
        for server in self.servers:
            if server.process is not None:
                server.process.start()
        try:
            async with asyncio.TaskGroup() as group:
                for server in self.servers:
                    group.create_task(self._open_server(server, check))
        except ExceptionGroup as errors:
            # The first failure cancels the other tasks; one reason is enough for the user.
            raise errors.exceptions[0] from None

    async def choose(self, session: tuple[int, int] | None) -> Server:
        """Returns the server of an episode, or the least loaded one; waits while all recover.

        Raises:
          EngineLost: No server is left.
        """
        async with self._changed:
            while True:
                self._check_any_left()
                ready_servers = [server for server in self.servers if server.state == "ready"]
                if ready_servers:
                    return self._assign_server(session, ready_servers)
                # Every recovery ends within `Limits`, makes its server ready or lost, and notifies.
                await self._changed.wait()

    def _assign_server(
        self, session: tuple[int, int] | None, ready_servers: list[Server]
    ) -> Server:
        """Returns the session's server if it is ready, or else the least loaded one."""
        if session is None:
            return min(ready_servers, key=lambda server: server.load)
        server = self._session_servers.get(session)
        if server is None or server.state != "ready":
            server = min(ready_servers, key=lambda server: server.load)
            self._session_servers[session] = server
        return server

    def end_session(self, session: tuple[int, int]) -> None:
        """Forgets the server of an ended episode and tells it."""
        server = self._session_servers.pop(session, None)
        if server is not None and server.state == "ready":
            server.end_session(session)

    def report(self, server: Server, reason: str) -> None:
        """Starts the recovery of a server after a failed request."""
        # Of many requests that fail together only the first starts a recovery.
        if server.state == "ready":
            server.failures += 1
            self._start_recovery(server, reason)

    def hold(self) -> None:
        """Makes recoveries wait for the next push: the last push's files are deleted next."""
        self._target_weights = None

    async def push(self, weights: PushedWeights) -> None:
        """Gives all servers new weights; on return each server has them or is lost.

        Raises:
          EngineLost: All servers are lost.
        """
        self._target_weights = weights
        # Prefixes that servers hold are of the old weights: sessions may move.
        self._session_servers.clear()
        for server in self.servers:
            # Before the first push servers are recovering without a task. One that recovers already
            # takes the new target by itself.
            is_unopened = server.state == "recovering" and server.recovery is None
            if server.state == "ready" or is_unopened:
                self._start_recovery(server, "gets new weights")
        recoveries = [server.recovery for server in self.servers if server.recovery is not None]
        await asyncio.gather(*recoveries)
        self._check_any_left()

    async def close(self) -> None:
        """Stops the servers of this run.

        Servers that others started do not stay paused by a push that was interrupted.
        """
        recoveries = [server.recovery for server in self.servers if server.recovery is not None]
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)
        releases = []
        processes = []
        for server in self.servers:
            if server.process is not None:
                processes.append(server.process)
            elif server.recovery is not None and server.recovery.cancelled():
                releases.append(server.release())
        # In threads, side by side: each may need its whole time limit to end.
        stops = [asyncio.to_thread(process.stop) for process in processes]
        await asyncio.gather(*releases, *stops)

    def _check_any_left(self) -> None:
        if all(server.state == "lost" for server in self.servers):
            reasons = "; ".join(f"{server.url}: {server.reason}" for server in self.servers)
            raise EngineLost(f"no server is left: {reasons}")

    async def _open_server(
        self, server: Server, check: Callable[[Server], Awaitable[None]]
    ) -> None:
        limit_s = self._limits.connect_s
        fix = "start it or correct config.engine.urls"
        if server.process is not None:
            limit_s = self._limits.start_s
            fix = f"see {server.process.log}"
        try:
            await self._call_until_up(server, server.check_health, limit_s)
            await check(server)
        except ServerFault as err:
            raise InputError(str(err), key=server.url, fix=fix) from err

    async def _call_until_up(
        self, server: Server, call: Callable[[], Awaitable[_T]], limit_s: float
    ) -> _T:
        """Repeats a call until the server answers it.

        Raises:
          ServerFault: The server's process ended, or the limit has passed.
        """
        start = time.monotonic()
        last_message = start
        while True:
            # A process that has ended will not answer within the limit either.
            if server.process is not None and not server.process.running:
                raise ServerFault(f"the server ended: {server.process.log_tail()}")
            try:
                return await call()
            except ServerFault as err:
                now = time.monotonic()
                if now - start > limit_s:
                    raise ServerFault(f"not up within {limit_s:g} s ({err})") from err
            if now - last_message > PROGRESS_S:
                last_message = now
                log_hint = f"; log: {server.process.log}" if server.process is not None else ""
                self._say(f"waiting for {server.url}, {now - start:.0f} s{log_hint}")
            await asyncio.sleep(PAUSE_S)

    def _start_recovery(self, server: Server, reason: str) -> None:
        server.state = "recovering"
        server.reason = reason
        server.recovery = asyncio.get_running_loop().create_task(self._recover_or_drop(server))

    async def _recover_or_drop(self, server: Server) -> None:
        """Recovers a server; waiters are notified even if that raises."""
        try:
            await self._recover(server)
        except InputError as err:
            self._drop(server, str(err.with_key("")))
        except Exception as err:
            log.exception("recovery of %s failed", server.url)
            self._drop(server, f"{type(err).__name__}: {err}")
        finally:
            async with self._changed:
                self._changed.notify_all()
        # After the others know: it may not answer.
        if server.state == "lost":
            await server.release()

    async def _recover(self, server: Server) -> None:
        """Recovers a server with the newest weights, by a restart if needed, or drops it."""
        # A process of this run that answers nothing for so long hangs, and is started again; other
        # servers can only be waited for.
        limit_s = HANG_S if server.process is not None else self._limits.connect_s
        failed_pushes = 0
        if server.failures > FAILURES:
            await self._restart_or_drop(
                server, f"failed {server.failures} times in a row: {server.reason}"
            )
        while server.state == "recovering":
            try:
                label = await self._call_until_up(server, server.weights_label, limit_s)
            except ServerFault as err:
                await self._restart_or_drop(server, str(err))
                limit_s = self._limits.start_s
                continue
            # A push may replace the target while this one is under way.
            target = self._target_weights
            try:
                # A server that was only out of reach still has the weights.
                if target is not None and label != target.label:
                    server.push_report = await server.push(target)
            except ServerFault as err:
                server.reason = str(err)
                # Weights that were replaced during their push cannot be loaded: their file may be
                # deleted.
                failed_pushes = failed_pushes + 1 if target is self._target_weights else 0
                if failed_pushes == PUSHES:
                    self._drop(server, server.reason)
            else:
                if target is not None and target is self._target_weights:
                    server.state = "ready"
                    return
            # Without a target there is nothing to push yet: the next push comes soon.
            await asyncio.sleep(PAUSE_S)

    async def _restart_or_drop(self, server: Server, reason: str) -> None:
        # A new process starts with a count of its own.
        server.failures = 0
        if server.process is None or server.restarts >= self._limits.restarts:
            self._drop(server, reason)
            return
        server.restarts += 1
        self._say(
            f"{server.url}: {reason}; restarted ({server.restarts} of {self._limits.restarts})"
        )
        await asyncio.to_thread(server.process.start)

    def _drop(self, server: Server, reason: str) -> None:
        server.state = "lost"
        server.reason = reason
        remaining = sum(server.state != "lost" for server in self.servers)
        self._say(f"{server.url}: dropped, {remaining} servers left: {reason}")
