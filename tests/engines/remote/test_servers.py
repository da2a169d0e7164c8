"""Scripted servers with short limits: which one gets a request, recovers, is restarted or dropped."""

import asyncio
import dataclasses
import functools
import re
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
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


def make_weights(label: str) -> PushedWeights:
    return PushedWeights(label, "w", "c0ffee", (1, 2), np.zeros(1, np.float32), 1.0)


FIRST = make_weights("r:1")
SECOND = make_weights("r:2")


class Scripted(Server):
    """A server without HTTP: up or not, and with the label of its weights."""

    def __init__(self, url: str = "http://a:1", *, up: bool = True, refuses: bool = False):
        super().__init__(url, None, LIMITS)  # type: ignore[arg-type]
        self.up = up
        self.refuses = refuses
        self.label = ""
        self.pushes = 0
        self.released = False

    async def check_health(self) -> None:
        if not self.up:
            raise ServerFault("refused")

    async def weights_label(self) -> str:
        await self.check_health()
        return self.label

    async def push(self, weights: PushedWeights) -> dict[str, float]:
        self.pushes += 1
        if self.refuses:
            raise ServerFault("will not")
        self.label = weights.label
        return {}

    async def release(self) -> None:
        self.released = True


@dataclass
class Process:
    """Stands for a server's process: it takes a while to come up."""

    server: Scripted
    start_s: float = 0.0
    starts: int = 0
    running: bool = True
    log: str = "log"

    def start(self) -> None:
        self.starts += 1
        self.running = True
        self.server.up = False
        self.server.label = ""
        self.loop.call_soon_threadsafe(self.loop.call_later, self.start_s, self.come_up)

    def come_up(self) -> None:
        self.server.up = self.running

    def log_tail(self) -> str:
        return "killed"

    def die(self) -> None:
        self.running = False
        self.server.up = False


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_servers, "PAUSE_S", 0.01)
    monkeypatch.setattr(remote_servers, "HANG_S", 0.2)


@pytest.fixture
def messages() -> list[str]:
    """The lines that the pools of a test print."""
    return []


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop, for at most a minute."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **fixtures), 60))

    return run


def make_pool(*servers: Scripted, messages: list[str] | None = None) -> ServerPool:
    return ServerPool(list(servers), LIMITS, [].append if messages is None else messages.append)


def make_own_server(start_s: float, messages: list[str]) -> tuple[ServerPool, Scripted, Process]:
    """A pool with one server, whose process belongs to the run."""
    server = Scripted()
    process = Process(server, start_s)
    process.loop = asyncio.get_running_loop()
    server.process = process  # type: ignore[assignment]
    return make_pool(server, messages=messages), server, process


@in_loop
async def test_a_server_of_this_run_that_starts_slower_than_the_hang_limit_is_restarted_once(
    messages: list[str],
) -> None:
    pool, server, process = make_own_server(0.6, messages)
    await pool.push(FIRST)
    process.die()
    pool.report(server, "reset")
    assert await pool.choose(None) is server
    assert server.label == "r:1"
    assert process.starts == 1
    assert server.pushes == 2
    assert messages == ["http://a:1: the server ended: killed; restarted (1 of 2)"]


@in_loop
async def test_a_server_of_this_run_that_hangs_is_restarted(messages: list[str]) -> None:
    pool, server, process = make_own_server(0.0, messages)
    await pool.push(FIRST)
    server.up = False  # the process runs on, but nobody answers
    pool.report(server, "late")
    await pool.choose(None)
    assert process.starts == 1


@in_loop
async def test_the_end_of_a_session_is_told_to_its_server_alone_and_forgotten() -> None:
    ended: list[Server] = []

    class Ending(Scripted):
        def end_session(self, session: tuple[int, int]) -> None:
            ended.append(self)

    first = Ending("http://a:1")
    second = Ending("http://b:1")
    pool = make_pool(first, second)
    await pool.push(FIRST)
    first.load = 1
    assert await pool.choose((1, 2)) is second
    for session in ((3, 4), (1, 2), (1, 2)):
        pool.end_session(session)
    assert pool._session_servers == {}
    assert ended == [second]


@in_loop
async def test_a_server_that_keeps_dying_is_dropped_after_its_restarts(
    messages: list[str],
) -> None:
    pool, server, process = make_own_server(0.0, messages)
    await pool.push(FIRST)
    for _ in range(3):
        await pool.choose(None)
        process.die()
        pool.report(server, "reset")
    reason = "no server is left: http://a:1: the server ended: killed"
    with pytest.raises(EngineLost, match=reason):
        await pool.choose(None)
    assert messages[0].endswith("; restarted (1 of 2)")
    assert messages[1].endswith("; restarted (2 of 2)")


@in_loop
async def test_a_given_server_that_comes_back_in_time_gets_the_current_weights() -> None:
    first = Scripted("http://a:1")
    second = Scripted("http://b:1")
    pool = make_pool(first, second)
    await pool.push(FIRST)
    second.load = 5
    assert await pool.choose((1, 1)) is first
    first.up = False
    first.label = "default"
    pool.report(first, "reset")
    assert await pool.choose((1, 1)) is second  # the episode moves on at once
    first.up = True
    await first.recovery
    assert first.state == "ready"
    assert [first.label, second.label] == ["r:1", "r:1"]


@in_loop
async def test_a_given_server_that_stays_away_is_dropped_and_without_any_all_waiters_get_an_error(
    messages: list[str],
) -> None:
    first = Scripted("http://a:1")
    second = Scripted("http://b:1")
    pool = make_pool(first, second, messages=messages)
    await pool.push(FIRST)
    first.up = False
    await pool.push(SECOND)
    assert [first.state, second.state] == ["lost", "ready"]
    assert messages == ["http://a:1: dropped, 1 servers left: not up within 1 s (refused)"]
    second.up = False
    pool.report(second, "reset")
    requests = [asyncio.create_task(pool.choose(None)) for _ in range(3)]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert all(isinstance(answer, EngineLost) for answer in answers)


@in_loop
async def test_a_server_that_takes_no_weights_is_dropped_after_three_pushes() -> None:
    server = Scripted(refuses=True)
    with pytest.raises(EngineLost, match=r"is left: http://a:1: will not$"):
        await make_pool(server).push(FIRST)
    # Earlier requests may wait there for weights that do not come.
    assert server.released
    assert server.pushes == remote_servers.PUSHES


class Slow(Scripted):
    """A server whose pushes wait until `may_end` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def push(self, weights: PushedWeights) -> dict[str, float]:
        self.begun.set()
        await self.may_end.wait()
        return await super().push(weights)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["closed", "cancelled"])
@in_loop
async def test_a_push_that_is_cut_off_leaves_no_server_of_others_paused(
    is_cancelled: bool,
) -> None:
    slow = Slow()
    quick = Scripted("http://b:1")
    pool = make_pool(slow, quick)
    push = asyncio.create_task(pool.push(FIRST))
    await slow.begun.wait()
    await pool.choose(None)
    if is_cancelled:
        push.cancel()
    await pool.close()
    await asyncio.gather(push, return_exceptions=True)
    assert slow.released
    assert not quick.released


@in_loop
async def test_an_unexpected_error_drops_the_server_instead_of_hanging() -> None:
    class Broken(Scripted):
        async def weights_label(self) -> str:
            raise KeyError("seconds")

    with pytest.raises(EngineLost, match="KeyError"):
        await make_pool(Broken()).push(FIRST)


@in_loop
async def test_a_server_that_fails_again_and_again_without_a_response_is_dropped() -> None:
    server = Scripted()
    pool = make_pool(server)
    await pool.push(FIRST)
    for _ in range(6):
        await pool.choose(None)
        pool.report(server, "nonsense")
    with pytest.raises(EngineLost, match="failed 6 times in a row: nonsense"):
        await pool.choose(None)


@in_loop
async def test_a_restarted_server_may_fail_as_often_as_a_new_one(messages: list[str]) -> None:
    pool, server, process = make_own_server(0.0, messages)
    await pool.push(FIRST)
    for _ in range(2 * remote_servers.FAILURES + 1):
        await pool.choose(None)
        pool.report(server, "nonsense")
    await pool.choose(None)
    assert process.starts == 1
    assert messages == ["http://a:1: failed 6 times in a row: nonsense; restarted (1 of 2)"]


@in_loop
async def test_an_episode_stays_until_new_weights_come_and_a_new_one_goes_to_the_least_loaded() -> (
    None
):
    first = Scripted("http://a:1")
    second = Scripted("http://b:1")
    pool = make_pool(first, second)
    await pool.push(FIRST)
    first.load = 2
    second.load = 3
    assert await pool.choose((1, 1)) is first
    first.load = 9
    assert await pool.choose((1, 1)) is first
    assert await pool.choose((1, 2)) is second
    assert await pool.choose(None) is second
    await pool.push(SECOND)
    assert [first.label, second.label] == ["r:2", "r:2"]
    assert await pool.choose((1, 1)) is second


@in_loop
async def test_a_server_that_has_the_weights_is_not_given_them_again() -> None:
    server = Scripted()
    pool = make_pool(server)
    await pool.push(FIRST)
    pool.report(server, "late")
    await pool.choose(None)
    assert server.pushes == 1


@in_loop
async def test_weights_that_come_during_a_recovery_are_the_ones_it_ends_with() -> None:
    server = Slow()
    pool = make_pool(server)
    first_push = asyncio.create_task(pool.push(FIRST))
    await server.begun.wait()
    second_push = asyncio.create_task(pool.push(SECOND))
    await asyncio.sleep(0)  # the second push tells the pool its weights
    server.may_end.set()
    await asyncio.gather(first_push, second_push)
    assert (await pool.choose(None)).state == "ready"
    assert server.label == "r:2"
    assert server.pushes == 2


@in_loop
async def test_a_recovery_waits_for_the_next_push_once_the_files_of_the_last_are_deleted() -> None:
    class Deleted(Scripted):
        async def push(self, weights: PushedWeights) -> dict[str, float]:
            if weights is FIRST and self.pushes:
                self.pushes += 1
                raise ServerFault("no such file")
            return await super().push(weights)

    server = Deleted()
    pool = make_pool(server)
    await pool.push(FIRST)
    server.label = "default"  # somebody restarted it
    pool.hold()
    pool.report(server, "other weights")
    await asyncio.sleep(0.3)  # time for more failed pushes than a server may have
    await pool.push(SECOND)
    assert server.state == "ready"
    assert server.label == "r:2"


@in_loop
async def test_a_server_that_refuses_the_key_is_dropped_at_once() -> None:
    class Strict(Scripted):
        requests = 0

        async def weights_label(self) -> str:
            self.requests += 1
            raise InputError(f"{self.url}: refuses the key")

    server = Strict()
    with pytest.raises(EngineLost, match="http://a:1: refuses the key"):
        await make_pool(server).push(FIRST)
    assert server.requests == 1


@in_loop
async def test_the_first_wait_reports_progress(
    messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_servers, "PROGRESS_S", 0.05)
    checked: list[Server] = []

    async def check(server: Server) -> None:
        checked.append(server)

    pool, server, process = make_own_server(0.3, messages)
    await pool.open(check)
    assert process.starts == 1
    assert checked == [server]
    assert re.fullmatch(r"waiting for http://a:1, \d+ s; log: log", messages[0])


async def no_check(server: Server) -> None:
    raise AssertionError("the server never comes up")


@in_loop
async def test_the_first_wait_ends_with_the_process(messages: list[str]) -> None:
    pool, _, process = make_own_server(60.0, messages)
    asyncio.get_running_loop().call_later(0.1, process.die)
    with pytest.raises(InputError, match="the server ended: killed; see log"):
        await pool.open(no_check)


@in_loop
async def test_the_first_wait_is_limited(messages: list[str]) -> None:
    pool, _, _ = make_own_server(60.0, messages)
    pool._limits = dataclasses.replace(LIMITS, start_s=0.2)
    with pytest.raises(InputError, match=r"not up within 0.2 s \(refused\); see log"):
        await pool.open(no_check)
    advice = r"not up within 1 s .* start it or correct config.engine.urls"
    with pytest.raises(InputError, match=advice):
        await make_pool(Scripted(up=False)).open(no_check)


def test_a_connection_to_a_silent_host_fails_in_a_minute() -> None:
    with open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))) as connection:
        options = {
            name: connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        }
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle_s = options["TCP_KEEPIDLE"] + options["TCP_KEEPINTVL"] * options["TCP_KEEPCNT"]
    assert idle_s == SILENT_HOST_S == 60
    assert options["TCP_USER_TIMEOUT"] == 60_000
