"""Which server is asked, mended, started again and given up: scripted servers, short limits."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.base import EngineLost
from gigpo_jax.sampling.vllm import servers as vllm_servers
from gigpo_jax.sampling.vllm.protocol import ServerFault
from gigpo_jax.sampling.vllm.servers import Limits, Member, ServerPool


@dataclass
class Wanted:
    label: str


@dataclass
class Scripted:
    """Stands for a server: up or not, and with a label."""

    url: str = "http://a:1"
    up: bool = True
    has: str = ""
    pushes: int = 0
    refuses: bool = False

    async def healthy(self) -> None:
        if not self.up:
            raise ServerFault("refused")

    async def label(self) -> str:
        return self.has

    async def push(self, weights: Wanted) -> dict[str, float]:
        self.pushes += 1
        if self.refuses:
            raise ServerFault(f"{self.url}: will not")
        self.has = weights.label
        return {}


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

    def last_words(self, _: int = 1) -> str:
        return "killed"

    def die(self) -> None:
        self.running = self.server.up = False


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_servers, "PAUSE_S", 0.01)
    monkeypatch.setattr(vllm_servers, "HANG_S", 0.2)


LIMITS = Limits(start_s=30.0, connect_s=1.0, restarts=2)


def pool(*servers: Scripted, said: list[str] | None = None) -> ServerPool:
    members = [Member(server) for server in servers]  # type: ignore[arg-type]
    return ServerPool(members, LIMITS, said.append if said is not None else lambda _: None)


def ours(server: Scripted, takes_s: float, said: list[str]) -> tuple[ServerPool, Process]:
    process = Process(server, takes_s)
    process.loop = asyncio.get_running_loop()
    made = pool(server, said=said)
    made.members[0].process = process  # type: ignore[assignment]
    return made, process


def test_one_of_ours_that_takes_longer_to_start_than_one_may_hang_is_started_again_once() -> None:
    async def scenario() -> tuple[int, int, list[str]]:
        said: list[str] = []
        server = Scripted()
        made, process = ours(server, 0.6, said)
        await made.spread(Wanted("r:1"))
        member = await made.choose(None)
        member.served = 3  # it had answered before it died
        process.die()
        made.suspect(member, "reset")
        again = await asyncio.wait_for(made.choose(None), 60)
        assert again is member
        assert server.has == "r:1"
        return process.starts, server.pushes, said

    starts, pushes, said = asyncio.run(scenario())
    assert (starts, pushes) == (1, 2)
    assert said == ["http://a:1: ended: killed; started again (1 of 2)"]


def test_one_of_ours_that_answered_and_hangs_is_started_again() -> None:
    async def scenario() -> int:
        server = Scripted()
        made, process = ours(server, 0.0, [])
        await made.spread(Wanted("r:1"))
        member = await made.choose(None)
        member.served, server.up = 1, False  # the process runs on, but nobody answers
        made.suspect(member, "late")
        await asyncio.wait_for(made.choose(None), 60)
        return process.starts

    assert asyncio.run(scenario()) == 1


def test_one_that_keeps_dying_is_given_up_and_says_how_often() -> None:
    async def scenario() -> list[str]:
        said: list[str] = []
        made, process = ours(Scripted(), 0.0, said)
        await made.spread(Wanted("r:1"))
        for _ in range(3):
            member = await asyncio.wait_for(made.choose(None), 60)
            process.die()
            made.suspect(member, "reset")
        with pytest.raises(EngineLost, match="no vLLM server is left: http://a:1: ended: killed"):
            await asyncio.wait_for(made.choose(None), 60)
        return said

    assert [line.rpartition("; ")[2] for line in asyncio.run(scenario())][:2] == [
        "started again (1 of 2)",
        "started again (2 of 2)",
    ]


def test_another_ones_server_may_come_back_in_time_and_gets_the_current_weights() -> None:
    async def scenario() -> tuple[str, str]:
        away, there = Scripted("http://a:1"), Scripted("http://b:1")
        made = pool(away, there)
        await made.spread(Wanted("r:1"))
        first, second = made.members
        first.load = 0
        second.load = 5
        assert await made.choose((1, 1)) is first
        away.up, away.has = False, "default"
        made.suspect(first, "reset")
        assert await made.choose((1, 1)) is second  # the episode moves on at once
        away.up = True
        await asyncio.wait_for(first.mending, 60)
        assert first.state == "ready"
        return away.has, there.has

    assert asyncio.run(scenario()) == ("r:1", "r:1")


def test_without_a_return_it_is_dropped_and_with_the_last_one_everybody_is_told() -> None:
    async def scenario() -> None:
        first, second = Scripted("http://a:1"), Scripted("http://b:1")
        said: list[str] = []
        made = pool(first, second, said=said)
        await made.spread(Wanted("r:1"))
        first.up = False
        await asyncio.wait_for(made.spread(Wanted("r:2")), 60)
        assert [member.state for member in made.members] == ["lost", "ready"]
        assert said == ["http://a:1: given up, 1 servers are left: refused"]
        second.up = False
        made.suspect(made.members[1], "reset")
        waiting = [asyncio.create_task(made.choose(None)) for _ in range(3)]
        answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert all(isinstance(answer, EngineLost) for answer in answers)

    asyncio.run(scenario())


def test_a_server_that_takes_no_weights_is_dropped_after_three_pushes() -> None:
    async def scenario() -> int:
        server = Scripted(refuses=True)
        with pytest.raises(EngineLost, match=r"is left: http://a:1: will not$"):
            await asyncio.wait_for(pool(server).spread(Wanted("r:1")), 60)
        return server.pushes

    assert asyncio.run(scenario()) == vllm_servers.PUSHES


def test_what_nobody_foresaw_loses_the_server_instead_of_hanging() -> None:
    class Odd(Scripted):
        async def label(self) -> str:
            raise KeyError("seconds")

    with pytest.raises(EngineLost, match="KeyError"):
        asyncio.run(asyncio.wait_for(pool(Odd()).spread(Wanted("r:1")), 60))


def test_one_that_fails_again_and_again_without_a_response_is_given_up() -> None:
    async def scenario() -> None:
        made = pool(Scripted())
        await made.spread(Wanted("r:1"))
        for _ in range(10):
            made.suspect(await asyncio.wait_for(made.choose(None), 60), "nonsense")

    with pytest.raises(EngineLost, match="failed 6 times in a row: nonsense"):
        asyncio.run(scenario())


def test_an_episode_stays_until_new_weights_come_and_a_new_one_goes_to_the_least_loaded() -> None:
    async def scenario() -> None:
        made = pool(Scripted("http://a:1"), Scripted("http://b:1"))
        await made.spread(Wanted("r:1"))
        first, second = made.members
        first.load, second.load = 2, 3
        assert await made.choose((1, 1)) is first
        first.load = 9
        assert await made.choose((1, 1)) is first
        assert await made.choose((1, 2)) is second
        assert await made.choose(None) is second
        await made.spread(Wanted("r:2"))
        assert [member.server.has for member in made.members] == ["r:2", "r:2"]
        assert await made.choose((1, 1)) is second

    asyncio.run(scenario())


def test_a_server_that_has_the_weights_is_not_given_them_again() -> None:
    async def scenario() -> int:
        server = Scripted()
        made = pool(server)
        await made.spread(Wanted("r:1"))
        made.suspect(made.members[0], "late")
        await asyncio.wait_for(made.choose(None), 60)
        return server.pushes

    assert asyncio.run(scenario()) == 1


def test_weights_that_come_during_a_mending_are_the_ones_it_ends_with() -> None:
    class Slow(Scripted):
        async def push(self, weights: Wanted) -> dict[str, float]:
            begun.set()
            await goes_on.wait()
            return await super().push(weights)

    async def scenario() -> tuple[str, int]:
        server = Slow()
        made = pool(server)
        first = asyncio.create_task(made.spread(Wanted("r:1")))
        await begun.wait()
        second = asyncio.create_task(made.spread(Wanted("r:2")))
        await asyncio.sleep(0)  # lets it say what is wanted
        goes_on.set()
        await asyncio.gather(first, second)
        assert (await made.choose(None)).state == "ready"
        return server.has, server.pushes

    begun, goes_on = asyncio.Event(), asyncio.Event()

    assert asyncio.run(scenario()) == ("r:2", 2)


def test_a_server_that_refuses_the_key_is_dropped_at_once() -> None:
    class Strict(Scripted):
        async def label(self) -> str:
            self.pushes += 1
            raise InputError(f"{self.url}: refuses the key")

    async def scenario() -> int:
        server = Strict()
        with pytest.raises(EngineLost, match="http://a:1: refuses the key"):
            await asyncio.wait_for(pool(server).spread(Wanted("r:1")), 60)
        return server.pushes

    assert asyncio.run(scenario()) == 1


def test_the_first_wait_tells_that_it_goes_on_and_ends_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_servers, "TELL_S", 0.05)
    checked: list[Member] = []

    async def check(member: Member) -> None:
        checked.append(member)

    async def opened(made: ServerPool) -> None:
        try:
            await asyncio.wait_for(made.open(check), 60)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def scenario() -> list[str]:
        said: list[str] = []
        made, process = ours(Scripted(), 0.3, said)
        await opened(made)
        assert process.starts == 1
        assert checked == made.members
        made, process = ours(Scripted(), 60.0, said)
        asyncio.get_running_loop().call_later(0.1, process.die)
        with pytest.raises(InputError, match=r"the server ended: killed \(log: log\)"):
            await opened(made)
        made, _ = ours(Scripted(), 60.0, said)
        made._limits = Limits(0.2, 9.0, 0)
        with pytest.raises(InputError, match=r"not up within 0.2 s \(refused\); log: log"):
            await opened(made)
        with pytest.raises(InputError, match=r"not up within 1 s .* correct config.engine.vllm.urls"):
            await opened(pool(Scripted(up=False)))
        return said

    assert re.fullmatch(r"waiting for http://a:1, \d+ s; log: log", asyncio.run(scenario())[0])
    assert len(checked) == 1
