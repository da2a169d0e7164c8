"""Which server gets a request, recovers, is restarted or dropped: scripted servers, short
limits.
"""

import asyncio
import dataclasses
import re
import socket
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.engines.remote import servers as remote_servers
from gigpo_jax.engines.remote.protocol import Limits, ServerFault
from gigpo_jax.engines.remote.server import SILENT_HOST_S, PushedWeights, Server, open_socket
from gigpo_jax.engines.remote.servers import ServerPool

LIMITS = Limits(start_s=30.0, connect_s=1.0, request_s=1.0, push_s=1.0, restarts=2)


def wanted(label: str) -> PushedWeights:
    return PushedWeights(label, "w", "c0ffee", (1, 2), np.zeros(1, np.float32), 1.0)


class Scripted(Server):
    """A server without HTTP: up or not, and with a label."""

    def __init__(self, url: str = "http://a:1", *, up: bool = True, refuses: bool = False):
        super().__init__(url, None, LIMITS)  # type: ignore[arg-type]
        self.up, self.refuses, self.has, self.pushes = up, refuses, "", 0
        self.released = False

    async def check_health(self) -> None:
        if not self.up:
            raise ServerFault("refused")

    async def weights_label(self) -> str:
        await self.check_health()
        return self.has

    async def push(self, weights: PushedWeights) -> dict[str, float]:
        self.pushes += 1
        if self.refuses:
            raise ServerFault("will not")
        self.has = weights.label
        return {}

    async def release(self) -> None:
        self.released = True


@dataclass
class Process:
    """Stands for a server's process: it takes a while to come up."""

    server: Scripted
    takes_s: float = 0.0
    starts: int = 0
    running: bool = True
    log: str = "log"
    timers: list[Any] = field(default_factory=list)

    def start(self) -> None:
        self.starts += 1
        self.running, self.server.up, self.server.has = True, False, ""
        self.loop.call_soon_threadsafe(self.loop.call_later, self.takes_s, self.come_up)

    def come_up(self) -> None:
        self.server.up = self.running

    def log_tail(self) -> str:
        return "killed"

    def die(self) -> None:
        self.running = self.server.up = False


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_servers, "PAUSE_S", 0.01)
    monkeypatch.setattr(remote_servers, "HANG_S", 0.2)


def pool(*servers: Scripted, said: list[str] | None = None) -> ServerPool:
    return ServerPool(list(servers), LIMITS, said.append if said is not None else lambda _: None)


def ours(server: Scripted, takes_s: float, said: list[str]) -> tuple[ServerPool, Process]:
    process = Process(server, takes_s)
    process.loop = asyncio.get_running_loop()
    server.process = process  # type: ignore[assignment]
    return pool(server, said=said), process


def test_a_server_of_this_run_that_starts_slower_than_the_hang_limit_is_restarted_once() -> None:
    async def scenario() -> tuple[int, int, list[str]]:
        said: list[str] = []
        server = Scripted()
        made, process = ours(server, 0.6, said)
        await made.push(wanted("r:1"))
        process.die()
        made.report(server, "reset")
        again = await asyncio.wait_for(made.choose(None), 60)
        assert again is server
        assert server.has == "r:1"
        return process.starts, server.pushes, said

    starts, pushes, said = asyncio.run(scenario())
    assert (starts, pushes) == (1, 2)
    assert said == ["http://a:1: the server ended: killed; restarted (1 of 2)"]


def test_a_server_of_this_run_that_hangs_is_restarted() -> None:
    async def scenario() -> int:
        server = Scripted()
        made, process = ours(server, 0.0, [])
        await made.push(wanted("r:1"))
        server.up = False  # the process runs on, but nobody answers
        made.report(server, "late")
        await asyncio.wait_for(made.choose(None), 60)
        return process.starts

    assert asyncio.run(scenario()) == 1


def test_the_end_of_a_session_is_told_to_its_server_alone_and_forgotten() -> None:
    async def scenario() -> tuple[Server, list[Server]]:
        told: list[Server] = []
        servers = [Scripted("http://a:1"), Scripted("http://b:1")]
        for server in servers:
            server.end_session = lambda _, server=server: told.append(server)  # type: ignore[method-assign]
        made = pool(*servers)
        await made.push(wanted("r:1"))
        servers[0].load = 1
        chosen = await made.choose((1, 2))
        for session in ((3, 4), (1, 2), (1, 2)):
            made.end_session(session)
        assert made._session_servers == {}
        return chosen, told

    chosen, told = asyncio.run(scenario())
    assert chosen.url == "http://b:1"
    assert told == [chosen]


def test_a_server_that_keeps_dying_is_dropped_after_its_restarts() -> None:
    async def scenario() -> list[str]:
        said: list[str] = []
        made, process = ours(Scripted(), 0.0, said)
        await made.push(wanted("r:1"))
        for _ in range(3):
            server = await asyncio.wait_for(made.choose(None), 60)
            process.die()
            made.report(server, "reset")
        with pytest.raises(
            EngineLost, match="no server is left: http://a:1: the server ended: killed"
        ):
            await asyncio.wait_for(made.choose(None), 60)
        return said

    assert [line.rpartition("; ")[2] for line in asyncio.run(scenario())][:2] == [
        "restarted (1 of 2)",
        "restarted (2 of 2)",
    ]


def test_a_given_server_that_comes_back_in_time_gets_the_current_weights() -> None:
    async def scenario() -> tuple[str, str]:
        away = Scripted("http://a:1")
        there = Scripted("http://b:1")
        made = pool(away, there)
        await made.push(wanted("r:1"))
        first, second = made.servers
        first.load = 0
        second.load = 5
        assert await made.choose((1, 1)) is first
        away.up, away.has = False, "default"
        made.report(first, "reset")
        assert await made.choose((1, 1)) is second  # the episode moves on at once
        away.up = True
        await asyncio.wait_for(first.recovery, 60)
        assert first.state == "ready"
        return away.has, there.has

    assert asyncio.run(scenario()) == ("r:1", "r:1")


def test_a_given_server_that_stays_away_is_dropped_and_without_any_all_waiters_get_an_error() -> (
    None
):
    async def scenario() -> None:
        first = Scripted("http://a:1")
        second = Scripted("http://b:1")
        said: list[str] = []
        made = pool(first, second, said=said)
        await made.push(wanted("r:1"))
        first.up = False
        await asyncio.wait_for(made.push(wanted("r:2")), 60)
        assert [server.state for server in made.servers] == ["lost", "ready"]
        assert said == ["http://a:1: dropped, 1 servers left: not up within 1 s (refused)"]
        second.up = False
        made.report(made.servers[1], "reset")
        waiting = [asyncio.create_task(made.choose(None)) for _ in range(3)]
        answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert all(isinstance(answer, EngineLost) for answer in answers)

    asyncio.run(scenario())


def test_a_server_that_takes_no_weights_is_dropped_after_three_pushes() -> None:
    async def scenario() -> int:
        server = Scripted(refuses=True)
        with pytest.raises(EngineLost, match=r"is left: http://a:1: will not$"):
            await asyncio.wait_for(pool(server).push(wanted("r:1")), 60)
        # Requests of before may wait there for weights that do not come.
        assert server.released
        return server.pushes

    assert asyncio.run(scenario()) == remote_servers.PUSHES


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["closed", "cancelled"])
def test_a_push_that_is_cut_off_leaves_no_server_of_others_paused(is_cancelled: bool) -> None:
    class Slow(Scripted):
        async def push(self, weights: PushedWeights) -> dict[str, float]:
            begun.set()
            await asyncio.sleep(60)
            return {}

    async def scenario() -> tuple[bool, bool]:
        made = pool(Slow("http://a:1"), Scripted("http://b:1"))
        push = asyncio.create_task(made.push(wanted("r:1")))
        await begun.wait()
        await asyncio.wait_for(made.choose(None), 60)
        if is_cancelled:
            push.cancel()
        await asyncio.wait_for(made.close(), 30)
        await asyncio.gather(push, return_exceptions=True)
        return tuple(server.released for server in made.servers)

    begun = asyncio.Event()
    assert asyncio.run(scenario()) == (True, False)


def test_an_unexpected_error_drops_the_server_instead_of_hanging() -> None:
    class Odd(Scripted):
        async def weights_label(self) -> str:
            raise KeyError("seconds")

    with pytest.raises(EngineLost, match="KeyError"):
        asyncio.run(asyncio.wait_for(pool(Odd()).push(wanted("r:1")), 60))


def test_a_server_that_fails_again_and_again_without_a_response_is_dropped() -> None:
    async def scenario() -> None:
        made = pool(Scripted())
        await made.push(wanted("r:1"))
        for _ in range(10):
            made.report(await asyncio.wait_for(made.choose(None), 60), "nonsense")

    with pytest.raises(EngineLost, match="failed 6 times in a row: nonsense"):
        asyncio.run(scenario())


def test_a_restarted_server_may_fail_as_often_as_a_new_one() -> None:
    async def scenario() -> tuple[int, list[str]]:
        said: list[str] = []
        made, process = ours(Scripted(), 0.0, said)
        await made.push(wanted("r:1"))
        for _ in range(2 * remote_servers.FAILURES + 1):
            made.report(await asyncio.wait_for(made.choose(None), 60), "nonsense")
        await asyncio.wait_for(made.choose(None), 60)
        return process.starts, said

    starts, said = asyncio.run(scenario())
    assert starts == 1
    assert said == ["http://a:1: failed 6 times in a row: nonsense; restarted (1 of 2)"]


def test_an_episode_stays_until_new_weights_come_and_a_new_one_goes_to_the_least_loaded() -> None:
    async def scenario() -> None:
        made = pool(Scripted("http://a:1"), Scripted("http://b:1"))
        await made.push(wanted("r:1"))
        first, second = made.servers
        first.load, second.load = 2, 3
        assert await made.choose((1, 1)) is first
        first.load = 9
        assert await made.choose((1, 1)) is first
        assert await made.choose((1, 2)) is second
        assert await made.choose(None) is second
        await made.push(wanted("r:2"))
        assert [server.has for server in (first, second)] == ["r:2", "r:2"]
        assert await made.choose((1, 1)) is second

    asyncio.run(scenario())


def test_a_server_that_has_the_weights_is_not_given_them_again() -> None:
    async def scenario() -> int:
        server = Scripted()
        made = pool(server)
        await made.push(wanted("r:1"))
        made.report(made.servers[0], "late")
        await asyncio.wait_for(made.choose(None), 60)
        return server.pushes

    assert asyncio.run(scenario()) == 1


def test_weights_that_come_during_a_recovery_are_the_ones_it_ends_with() -> None:
    class Slow(Scripted):
        async def push(self, weights: PushedWeights) -> dict[str, float]:
            begun.set()
            await goes_on.wait()
            return await super().push(weights)

    async def scenario() -> tuple[str, int]:
        server = Slow()
        made = pool(server)
        first = asyncio.create_task(made.push(wanted("r:1")))
        await begun.wait()
        second = asyncio.create_task(made.push(wanted("r:2")))
        await asyncio.sleep(0)  # lets it say what is wanted
        goes_on.set()
        await asyncio.gather(first, second)
        assert (await made.choose(None)).state == "ready"
        return server.has, server.pushes

    begun = asyncio.Event()
    goes_on = asyncio.Event()

    assert asyncio.run(scenario()) == ("r:2", 2)


def test_a_recovery_waits_for_the_next_push_once_the_files_of_the_last_are_deleted() -> None:
    class Deleted(Scripted):
        async def push(self, weights: PushedWeights) -> dict[str, float]:
            if weights.label == "r:1" and self.pushes:
                self.pushes += 1
                raise ServerFault("no such file")
            return await super().push(weights)

    async def scenario() -> tuple[str, str]:
        server = Deleted()
        made = pool(server)
        await made.push(wanted("r:1"))
        server.has = "default"  # somebody restarted it
        made.hold()
        made.report(server, "other weights")
        await asyncio.sleep(0.3)  # time for more failed pushes than a server may have
        await asyncio.wait_for(made.push(wanted("r:2")), 60)
        return server.state, server.has

    assert asyncio.run(scenario()) == ("ready", "r:2")


def test_a_server_that_refuses_the_key_is_dropped_at_once() -> None:
    class Strict(Scripted):
        async def weights_label(self) -> str:
            self.pushes += 1
            raise InputError(f"{self.url}: refuses the key")

    async def scenario() -> int:
        server = Strict()
        with pytest.raises(EngineLost, match="http://a:1: refuses the key"):
            await asyncio.wait_for(pool(server).push(wanted("r:1")), 60)
        return server.pushes

    assert asyncio.run(scenario()) == 1


def test_the_first_wait_reports_progress_and_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_servers, "PROGRESS_S", 0.05)
    checked: list[Server] = []

    async def check(server: Server) -> None:
        checked.append(server)

    async def opened(made: ServerPool) -> None:
        await asyncio.wait_for(made.open(check), 60)

    async def scenario() -> list[str]:
        said: list[str] = []
        made, process = ours(Scripted(), 0.3, said)
        await opened(made)
        assert process.starts == 1
        assert checked == made.servers
        made, process = ours(Scripted(), 60.0, said)
        asyncio.get_running_loop().call_later(0.1, process.die)
        with pytest.raises(InputError, match="the server ended: killed; see log"):
            await opened(made)
        made, _ = ours(Scripted(), 60.0, said)
        made._limits = dataclasses.replace(LIMITS, start_s=0.2)
        with pytest.raises(InputError, match=r"not up within 0.2 s \(refused\); see log"):
            await opened(made)
        with pytest.raises(
            InputError, match=r"not up within 1 s .* start it or correct config.engine.urls"
        ):
            await opened(pool(Scripted(up=False)))
        return said

    assert re.fullmatch(r"waiting for http://a:1, \d+ s; log: log", asyncio.run(scenario())[0])
    assert len(checked) == 1


def test_a_connection_to_a_silent_host_fails_in_a_minute() -> None:
    with open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))) as opened:
        options = {
            name: opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        }
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle_s = options["TCP_KEEPIDLE"] + options["TCP_KEEPINTVL"] * options["TCP_KEEPCNT"]
    assert idle_s == SILENT_HOST_S == 60
    assert options["TCP_USER_TIMEOUT"] == 60_000
