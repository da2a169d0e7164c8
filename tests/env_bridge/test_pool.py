"""The pool with real processes: answers, failures of every kind, and that nothing is left behind."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable

import pytest

from gigpo_jax.env_bridge.pool import EnvPool, PooledEnv
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError

EXAMPLE = "gigpo_jax.envs.example.env:TreasureEnv"
FAILING = "tests.env_bridge.failing:"


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int] | tuple[int, ...], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


async def lend_all(pool: EnvPool) -> list[PooledEnv]:
    """Every environment of the pool, reset."""
    lent = [await pool.acquire() for _ in range(pool.size)]
    task = pool.tasks("train")[0]
    await asyncio.gather(*(environment.reset(task) for environment in lent))
    return lent


async def outcomes(calls: list[Awaitable[object]]) -> list[object]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_128_episodes_at_once_give_what_the_environment_gives_alone() -> None:
    with EnvPool(EXAMPLE, {"drawers": 5}, workers=2, envs_per_worker=32) as pool:
        alone = registry.make("example", drawers=5)
        assert pool.tasks("train") == list(alone.tasks("train"))
        actions = ["open drawer 1", "nonsense", "close drawer 1", "open drawer 3", "take coin", "take ring"]

        async def play(index: int) -> list[object]:
            async with pool.episode() as environment:
                seen: list[object] = [await environment.reset(pool.tasks("train")[index % 64])]
                for action in actions:
                    seen.append(await environment.step(action))
                return seen

        async def play_all() -> list[list[object]]:
            return await asyncio.gather(*(play(index) for index in range(128)))

        for _ in range(2):  # two event loops, one after the other
            for index, seen in enumerate(asyncio.run(play_all())):
                expected: list[object] = [alone.reset(pool.tasks("train")[index % 64])]
                expected += [alone.step(action) for action in actions]
                assert seen == expected
        assert pool.replaced == 0


def test_a_step_costs_this_process_little() -> None:
    async def play(pool: EnvPool) -> float:
        lent = await lend_all(pool)
        started = time.process_time()
        for _ in range(20):
            await asyncio.gather(*(environment.step("look") for environment in lent))
        return (time.process_time() - started) / (20 * len(lent))

    with EnvPool(EXAMPLE, workers=2, envs_per_worker=32) as pool:
        assert asyncio.run(play(pool)) < 300e-6, "about 20 microseconds on a free core"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_worker_costs_its_own_episodes_and_is_replaced(number: signal.Signals) -> None:
    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)  # places alternate between the two workers
        victim = pool.pids[0]
        os.kill(victim, number)
        started = time.monotonic()
        results = await outcomes([environment.step("open drawer 1") for environment in lent])
        assert time.monotonic() - started < 8
        lost, kept = results[0::2], results[1::2]
        assert all(isinstance(result, EnvError) for result in lost)
        expected = "died with status 137" if number == signal.SIGKILL else "gave no answer within 2 s (step)"
        assert all(expected in str(result) and str(victim) in str(result) for result in lost)
        assert not any(isinstance(result, BaseException) for result in kept)
        assert gone([victim], 5)
        with pytest.raises(EnvError, match=str(victim)):  # the episode is lost, not only the call
            await lent[0].step("open drawer 1")
        for environment in lent:
            environment.release()
        lent = await lend_all(pool)
        results = await outcomes([environment.step("open drawer 1") for environment in lent])
        assert not any(isinstance(result, BaseException) for result in results)
        assert pool.replaced == 1

    with EnvPool(EXAMPLE, workers=2, envs_per_worker=3, step_timeout_s=2.0) as pool:
        asyncio.run(scenario(pool))


def test_an_environment_that_hangs_or_ends_its_process_costs_one_worker() -> None:
    async def scenario(pool: EnvPool) -> None:
        for action, expected in (("sleep 60", "no answer within 2 s"), ("exit 7", "died with status 7")):
            lent = await lend_all(pool)
            calls = [lent[0].step("look"), lent[0].step(action), lent[1].step("sleep 0.5"), lent[2].step("look")]
            results = await outcomes(list(calls))
            assert isinstance(results[1], EnvError)
            assert expected in str(results[1])
            assert not isinstance(results[0], BaseException), "it was answered before"
            assert not isinstance(results[2], BaseException), "the other worker goes on"
            assert str(results[3]) == str(results[1]), "this episode was in the same process"
            for environment in lent:
                environment.release()
        assert pool.replaced == 2

    with EnvPool(FAILING + "FailingEnv", workers=2, envs_per_worker=2, step_timeout_s=2.0) as pool:
        asyncio.run(scenario(pool))


def test_an_environment_that_raises_costs_its_episode_alone() -> None:
    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)
        results = await outcomes([lent[0].step("raise here"), lent[1].step("open drawer 1"), lent[2].step("print")])
        assert isinstance(results[0], EnvError)
        assert "KeyError: 'here' (failing.py:" in str(results[0])
        assert not any(isinstance(result, BaseException) for result in results[1:])
        observation = await lent[0].reset(pool.tasks("train")[1])  # built anew
        assert observation.text.startswith("You stand")
        results = await outcomes([lent[1].step("leave"), lent[2].step("open drawer 1")])
        assert "SystemExit: 0 (failing.py:" in str(results[0])
        assert not isinstance(results[1], BaseException)
        assert pool.replaced == 0
        results = await outcomes([lent[0].step("unreadable"), lent[0].step("open drawer 1")])
        assert "cannot be read" in str(results[0])
        assert pool.replaced == 1

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=3) as pool:
        asyncio.run(scenario(pool))


def test_a_call_is_timed_from_when_its_worker_turns_to_it() -> None:
    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)
        results = await outcomes([environment.step("sleep 0.8") for environment in lent])  # 6.4 s one after the other
        assert not any(isinstance(result, BaseException) for result in results)
        pending = asyncio.ensure_future(lent[0].step("open drawer 1"))
        await asyncio.sleep(0)
        time.sleep(5.5)  # this process is busy for longer than the limit; the answer has come meanwhile
        assert (await pending).reward == 0
        assert pool.replaced == 0

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=8, step_timeout_s=5.0) as pool:
        asyncio.run(scenario(pool))


def test_steps_that_wait_for_something_else_overlap_and_fail_alone() -> None:
    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)
        order: list[int] = []

        async def act(index: int, action: str) -> object:
            try:
                return await lent[index].step(action)
            finally:
                order.append(index)

        actions = ["sleep 1.5", *["sleep 1"] * 5, "raise here", "open drawer 1"]
        started = time.monotonic()
        results = await outcomes([act(index, action) for index, action in enumerate(actions)])
        assert time.monotonic() - started < 5, "one after the other would take 6.5 s"
        assert order.index(7) < order.index(1) < order.index(0)
        assert [index for index, result in enumerate(results) if isinstance(result, BaseException)] == [6]
        assert "KeyError: 'here'" in str(results[6])
        assert getattr(results[7], "observation").text.startswith("You open the drawer 1")  # noqa: B009
        # An environment whose step was given up is not touched before that step has ended.
        given_up = asyncio.ensure_future(lent[0].step("sleep 1"))
        await asyncio.sleep(0.1)
        given_up.cancel()
        started = time.monotonic()
        assert (await lent[0].reset(pool.tasks("train")[0])).text.startswith("You stand")
        assert time.monotonic() - started > 0.5
        late = await outcomes([lent[0].step("sleep 60"), lent[1].step("open drawer 1")])
        assert "no answer within 4 s (step)" in str(late[0])
        assert not isinstance(late[1], BaseException), "it was answered before"
        assert pool.replaced == 1

    with EnvPool(FAILING + "PatientEnv", workers=1, envs_per_worker=8, step_timeout_s=4.0) as pool:
        asyncio.run(scenario(pool))


def test_a_cancelled_episode_gives_its_environment_back() -> None:
    async def scenario(pool: EnvPool) -> None:
        async def episode(action: str) -> str:
            async with pool.episode() as environment:
                await environment.reset(pool.tasks("train")[0])
                return (await environment.step(action)).observation.text

        first, waiting = asyncio.create_task(episode("sleep 0.5")), asyncio.create_task(episode("open drawer 1"))
        await asyncio.sleep(0.1)
        third = asyncio.create_task(episode("open drawer 2"))
        await asyncio.sleep(0)
        first.cancel()
        waiting.cancel()
        assert (await asyncio.wait_for(third, 5)).startswith("You open the drawer 2")
        held, waiting_too = await pool.acquire(), asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        held.release()
        waiting_too.cancel()  # it was lent the place already, and never learns of it
        await asyncio.wait_for(pool.acquire(), 5)

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=1) as pool:
        asyncio.run(scenario(pool))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (EXAMPLE, {"drawers": 0}, "env.options.drawers=0: use a number from 1 to 99"),
        (EXAMPLE, {"windows": 2}, "unexpected keyword argument 'windows'"),
        (FAILING + "no_data", {"path": "/x"}, "env.options.path=/x: no such folder; make it with --out"),
        (FAILING + "nothing_of_this_name", {}, "cannot load tests.env_bridge.failing:nothing_of_this_name"),
        (FAILING + "imports_jax", {}, "imports_jax imports jax; environment workers must not"),
    ],
)
def test_what_cannot_be_built_is_told_in_one_line(name: str, options: dict[str, object], message: str) -> None:
    before = set(children())
    with pytest.raises(InputError) as caught:
        EnvPool(name, options, workers=2, envs_per_worker=1)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(children()) <= before


@pytest.mark.parametrize(
    ("name", "limit_s", "expected"),
    [("crashes", 60.0, "died with status 3 (start)"), ("hangs", 1.0, "gave no answer within 1 s (start)")],
)
def test_workers_that_do_not_come_up(name: str, limit_s: float, expected: str) -> None:
    before = set(children())
    with pytest.raises(EnvError) as caught:
        EnvPool(FAILING + name, workers=2, envs_per_worker=1, start_timeout_s=limit_s)
    assert expected in str(caught.value)
    assert set(children()) <= before


def children() -> list[int]:
    """The running child processes of this process."""
    mine = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            mine.append(int(status.parent.name))
    return mine


def test_a_worker_that_cannot_be_replaced_is_given_up(tmp_path: pathlib.Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()

    async def scenario(pool: EnvPool) -> None:
        environment = await pool.acquire()
        await environment.reset(pool.tasks("train")[0])
        marker.unlink()
        with pytest.raises(EnvError, match="status 1"):
            await environment.step("exit 1")
        environment.release()
        reasons = []
        while len(reasons) < 9:  # each failed start costs the call that waited for it
            try:
                async with pool.episode() as environment:
                    await environment.reset(pool.tasks("train")[0])
            except EnvError as err:
                reasons.append(str(err))
        assert "could not start" in reasons[0]
        assert "gone" in reasons[0]
        assert "no environment worker is left" in reasons[-1]
        assert "gone" in reasons[-1]

    with EnvPool(FAILING + "while_file", {"path": str(marker)}, workers=1, envs_per_worker=2) as pool:
        asyncio.run(asyncio.wait_for(scenario(pool), 60))


def test_closing_ends_every_process_and_every_wait() -> None:
    async def scenario() -> None:
        pool = EnvPool(FAILING + "FailingEnv", workers=2, envs_per_worker=1)
        pids = pool.pids
        lent = await lend_all(pool)
        waits: list[Callable[[], Awaitable[object]]] = [lambda: lent[0].step("sleep 60"), pool.acquire]
        pending = [asyncio.ensure_future(wait()) for wait in waits]
        await asyncio.sleep(0.2)
        pool.close()
        pool.close()
        assert all("closed" in str(result) for result in await outcomes(list(pending)))
        assert gone(pids, 0)
        with pytest.raises(EnvError, match="closed"):
            await lent[1].step("open drawer 1")

    asyncio.run(scenario())


def test_workers_leave_signals_to_the_parent_and_hold_no_jax() -> None:
    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)
        for pid in pool.pids:
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGTERM)  # batch systems send it to every process; the parent decides what follows
            assert "jaxlib" not in pathlib.Path(f"/proc/{pid}/maps").read_text()
            assert os.getpgid(pid) != os.getpgid(0), "a terminal's Ctrl-C does not reach it"
        results = await outcomes([environment.step("open drawer 1") for environment in lent])
        assert not any(isinstance(result, BaseException) for result in results)
        assert pool.replaced == 0

    with EnvPool(EXAMPLE, workers=2, envs_per_worker=1) as pool:
        asyncio.run(scenario(pool))


def test_workers_do_not_inherit_the_key_of_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")

    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)
        await lent[0].step("secret")  # an assertion there

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=1) as pool:
        asyncio.run(scenario(pool))


def test_processes_of_an_environment_end_with_its_worker() -> None:
    """When the worker is replaced, when it ends by itself, and when the pool is closed."""

    async def start(environment: PooledEnv) -> int:
        return int((await environment.step("start 1000")).observation.text)

    async def scenario(pool: EnvPool) -> int:
        for action in ("spin", "exit 3"):
            lent = await lend_all(pool)
            worker, child = pool.pids[0], await start(lent[0])
            assert alive(child)
            with pytest.raises(EnvError):
                await lent[0].step(action)
            assert gone([worker, child], 8), action
            lent[0].release()
        (environment,) = await lend_all(pool)
        return await start(environment)

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=1, step_timeout_s=1.0) as pool:
        child = asyncio.run(scenario(pool))
        assert alive(child)
    assert gone([child], 5)


@pytest.mark.parametrize("action", ["sleep 60", "spin", "start 1000"])
@pytest.mark.parametrize("how", ["killed", "exits without closing"])
def test_no_process_outlives_the_program(how: str, action: str) -> None:
    script = textwrap.dedent(
        f"""
        import asyncio, sys
        from gigpo_jax.env_bridge.pool import EnvPool
        pool = EnvPool("{FAILING}FailingEnv", workers=2, envs_per_worker=1)
        async def play():
            lent = [await pool.acquire() for _ in range(2)]
            await asyncio.gather(*(env.reset(pool.tasks("train")[0]) for env in lent))
            call = asyncio.ensure_future(lent[0].step("{action}"))  # one worker is in the midst of a call
            await asyncio.sleep(0.5)
            print(*pool.pids, *([call.result().observation.text] if call.done() else []), flush=True)
            await asyncio.sleep(0 if {how != "killed"} else 60)
            sys.exit(0)
        asyncio.run(play())
        """
    )
    root = pathlib.Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2 + action.startswith("start")
        if how == "killed":
            assert all(map(alive, pids))
            program.kill()
        program.wait(timeout=20)
    assert gone(pids, 10)


def test_a_worker_ends_with_its_guard() -> None:
    """Whoever kills the first process of a worker, such as the kernel, kills the environments too."""

    async def scenario(pool: EnvPool) -> None:
        (environment,) = await lend_all(pool)
        worker = pool.pids[0]
        guard = int(pathlib.Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        pending = asyncio.ensure_future(environment.step("spin"))
        await asyncio.sleep(0.2)
        os.kill(guard, signal.SIGKILL)
        with pytest.raises(EnvError, match="died"):
            await pending
        assert gone([worker], 5)

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=1) as pool:
        asyncio.run(scenario(pool))
