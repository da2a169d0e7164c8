"""The servers of an engine: which can be asked, which are being mended, which were given up.

Everything here runs in one event loop. A server is asked only while it is "ready", and it becomes ready only by
`_mend`, which sees to it that it is up and has the weights that are wanted. Every mending ends, one way or the other,
within the limits of `Limits`, so whoever waits for a server is answered.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.base import EngineLost
from gigpo_jax.sampling.vllm.launch import ServerProcess, wait_message
from gigpo_jax.sampling.vllm.protocol import ServerFault
from gigpo_jax.sampling.vllm.server import Server, Weights

PAUSE_S = 0.5  # between two looks at a server that is not up
TELL_S = 15.0  # a person who waits hears this often that it goes on
HANG_S = 60.0  # a server of ours that ran and does not answer any more gets this long
PUSHES = 3  # failed pushes in a row before a server is given up
RELAPSES = 5  # mended so often without a single response in between: given up

Say = Callable[[str], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How long and how often.

    Attributes:
      start_s: for a server that we start, until it answers.
      connect_s: for a server of somebody else's to come (back).
      restarts: how often one of ours is started again in a run.
    """

    start_s: float
    connect_s: float
    restarts: int


@dataclass(eq=False)
class Member:
    """One server and what is known of it.

    Attributes:
      server: how to talk to it.
      process: if it is ours.
      state: only "ready" ones are asked; "lost" is for good.
      load: requests under way.
      seeded: whether it takes a seed of a request's own.
      restarts: how often it was started again.
      relapses: mendings since its last response.
      reason: why it is not ready.
      pushed: what its last push reported.
      mending: the task that brings it back.
      served: responses since it was started; one that never answered is starting, not hanging.
    """

    server: Server
    process: ServerProcess | None = None
    state: Literal["mending", "ready", "lost"] = "mending"
    load: int = 0
    seeded: bool = True
    restarts: int = 0
    relapses: int = 0
    reason: str = "not started"
    pushed: dict[str, float] = field(default_factory=dict)
    mending: "asyncio.Task[None] | None" = None
    served: int = 0


class ServerPool:
    """All servers of an engine."""

    def __init__(self, members: list[Member], limits: Limits, say: Say):
        """Takes them over; nothing is started yet."""
        self.members, self._limits, self._say = members, limits, say
        self._wanted: Weights | None = None
        self._homes: dict[tuple[int, int], Member] = {}
        self._changed = asyncio.Condition()

    async def open(self, check: Callable[[Member], Awaitable[None]]) -> None:
        """Starts those that are ours, waits until all answer, and lets `check` look at each.

        Raises:
          InputError: one does not come up, or `check` refuses it.
        """
        for member in self.members:
            if member.process is not None:
                member.process.start()
        async with asyncio.TaskGroup() as group:
            for member in self.members:
                group.create_task(self._first(member, check))

    async def choose(self, session: tuple[int, int] | None) -> Member:
        """The server of an episode, or the least loaded one for a new episode; waits while all are being mended.

        Raises:
          EngineLost: there is none and there will be none.
        """
        async with self._changed:
            while True:
                ready = [member for member in self.members if member.state == "ready"]
                if ready:
                    home = self._homes.get(session) if session is not None else None
                    if home is None or home.state != "ready":
                        home = min(ready, key=lambda member: member.load)
                    if session is not None:
                        self._homes[session] = home
                    return home
                if all(member.state == "lost" for member in self.members):
                    raise EngineLost(self._obituary())
                await self._changed.wait()

    def suspect(self, member: Member, reason: str) -> None:
        """Takes a server out until it was looked at; called for every failed request."""
        if member.state == "ready":
            member.relapses += 1
            self._start_mending(member, reason)

    async def spread(self, weights: Weights) -> None:
        """Gives all servers new weights; on return each has them or is lost.

        Raises:
          EngineLost: all are lost.
        """
        self._wanted = weights
        self._homes.clear()
        for member in self.members:
            if member.state == "ready" or (member.state == "mending" and (not member.mending or member.mending.done())):
                self._start_mending(member, "gets new weights")
        tasks = [member.mending for member in self.members if member.mending is not None]
        await asyncio.gather(*tasks)
        if all(member.state == "lost" for member in self.members):
            raise EngineLost(self._obituary())

    async def close(self) -> None:
        """Ends the servers that are ours."""
        for member in self.members:
            if member.mending is not None:
                member.mending.cancel()
        stops = [asyncio.to_thread(m.process.stop) for m in self.members if m.process is not None]
        await asyncio.gather(*stops)

    def _start_mending(self, member: Member, reason: str) -> None:
        member.state, member.reason = "mending", reason
        member.mending = asyncio.get_running_loop().create_task(self._mend_or_lose(member))

    async def _first(self, member: Member, check: Callable[[Member], Awaitable[None]]) -> None:
        """Waits for a server for the first time."""
        started = told = time.monotonic()
        limit = self._limits.start_s if member.process else self._limits.connect_s
        while True:
            try:
                await member.server.healthy()
                break
            except ServerFault as err:
                trouble = str(err)
            process, url = member.process, member.server.url
            if process is not None and not process.running:
                raise InputError(
                    f"config.engine.vllm.launch: the server ended: {process.last_words()} (log: {process.log})"
                )
            if time.monotonic() - started > limit:
                known = f"log: {process.log}" if process else "correct config.engine.vllm.urls or start it"
                raise InputError(f"{url}: not up within {limit:g} s ({trouble}); {known}")
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                self._say(wait_message(url, started, process))
            await asyncio.sleep(PAUSE_S)
        await check(member)

    async def _mend_or_lose(self, member: Member) -> None:
        """Mends, and tells whoever waits; nobody waits for ever because something unforeseen went wrong here."""
        try:
            await self._mend(member)
        except Exception as err:
            log.exception("mending %s failed", member.server.url)
            member.reason = f"{type(err).__name__}: {err}"
            self._lose(member)
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _mend(self, member: Member) -> None:
        """Brings a server back: up, and with the wanted weights; or gives it up."""
        began = time.monotonic()
        failed_pushes = 0
        if member.relapses > RELAPSES:
            await self._revive_or_give_up(member, f"failed {member.relapses} times in a row: {member.reason}")
        while member.state != "lost":
            wanted = self._wanted
            try:
                if member.process is not None and not member.process.running:
                    await self._revive_or_give_up(member, f"ended: {member.process.last_words(1)}")
                    began = time.monotonic()
                    continue
                await member.server.healthy()
                if wanted is None:
                    return
                if await member.server.label() != wanted.label:
                    failed_pushes += 1
                    member.pushed = await member.server.push(wanted)
                if wanted is self._wanted:
                    break
                failed_pushes = 0
                continue
            except (ServerFault, InputError) as err:
                member.reason = str(err).removeprefix(f"{member.server.url}: ")
                if failed_pushes >= PUSHES or isinstance(err, InputError):
                    self._lose(member)
            waited = time.monotonic() - began
            if member.process is None and waited > self._limits.connect_s:
                self._lose(member)
            elif member.process is not None and waited > (HANG_S if member.served else self._limits.start_s):
                await self._revive_or_give_up(member, f"does not answer: {member.reason}")
                began = time.monotonic()
            await asyncio.sleep(PAUSE_S)
        if member.state != "lost":
            member.state = "ready"

    async def _revive_or_give_up(self, member: Member, reason: str) -> None:
        """Starts a server of ours again while that is allowed; others are lost."""
        member.reason, member.relapses = reason, 0
        if member.process is None or member.restarts >= self._limits.restarts:
            self._lose(member)
            return
        member.restarts, member.served = member.restarts + 1, 0
        self._say(f"{member.server.url}: {reason}; started again ({member.restarts} of {self._limits.restarts})")
        await asyncio.to_thread(member.process.start)

    def _lose(self, member: Member) -> None:
        if member.state != "lost":
            member.state = "lost"
            left = sum(other.state != "lost" for other in self.members)
            self._say(f"{member.server.url}: given up, {left} servers are left: {member.reason}")

    def _obituary(self) -> str:
        reasons = "; ".join(f"{member.server.url}: {member.reason}" for member in self.members)
        return f"no vLLM server is left: {reasons}"
