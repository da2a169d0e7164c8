"""The processes of a pool: how they start and end, and that nothing is left behind."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.processes.pool import EnvPool, PooledEnv
from gigpo_jax.env_bridge.types import EnvError
from tests.env_bridge.processes.pools import EXAMPLE, FAILING, lend_all, outcomes
from tests.processes import alive, gone


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (EXAMPLE, {"drawers": 0}, "env.options.drawers=0: must be a number from 1 to 99"),
        (EXAMPLE, {"windows": 2}, "unexpected keyword argument 'windows'"),
        (
            FAILING + "no_data",
            {"path": "/x"},
            "env.options.path=/x: no such folder; make it with --out",
        ),
        (
            FAILING + "nothing_of_this_name",
            {},
            "cannot load tests.env_bridge.failing:nothing_of_this_name",
        ),
        (
            FAILING + "imports_jax",
            {},
            "imports_jax: imports jax, which environment workers must not",
        ),
    ],
)
def test_what_cannot_be_built_is_told_in_one_line(
    name: str, options: dict[str, object], message: str
) -> None:
    earlier_children = set(children())
    with pytest.raises(InputError) as caught:
        EnvPool(name, options, workers=2, envs_per_worker=1)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(children()) <= earlier_children


@pytest.mark.parametrize(
    ("name", "limit_s", "expected"),
    [
        ("crashes", 60.0, "died with status 3 (start)"),
        ("hangs", 1.0, "gave no answer within 1 s (start)"),
    ],
)
def test_workers_that_do_not_come_up(name: str, limit_s: float, expected: str) -> None:
    earlier_children = set(children())
    with pytest.raises(EnvError) as caught:
        EnvPool(FAILING + name, workers=2, envs_per_worker=1, start_timeout_s=limit_s)
    assert expected in str(caught.value)
    assert set(children()) <= earlier_children


def children() -> list[int]:
    """The running child processes of this process."""
    pids = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            pids.append(int(status.parent.name))
    return pids


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

    with EnvPool(
        FAILING + "while_file", {"path": str(marker)}, workers=1, envs_per_worker=2
    ) as pool:
        asyncio.run(asyncio.wait_for(scenario(pool), 60))


def test_closing_ends_every_process_and_every_wait() -> None:
    async def scenario() -> None:
        pool = EnvPool(FAILING + "FailingEnv", workers=2, envs_per_worker=1)
        pids = pool.pids
        lent = await lend_all(pool)
        waits: list[Callable[[], Awaitable[object]]] = [
            lambda: lent[0].step("sleep 60"),
            pool.acquire,
        ]
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
            os.kill(
                pid, signal.SIGTERM
            )  # batch systems send it to every process; the parent decides what follows
            assert "jaxlib" not in pathlib.Path(f"/proc/{pid}/maps").read_text()
            assert os.getpgid(pid) != os.getpgid(0), "a terminal's Ctrl-C does not reach it"
        results = await outcomes([environment.step("open drawer 1") for environment in lent])
        assert not any(isinstance(result, BaseException) for result in results)
        assert pool.replaced == 0

    with EnvPool(EXAMPLE, workers=2, envs_per_worker=1) as pool:
        asyncio.run(scenario(pool))


def test_workers_do_not_inherit_the_key_of_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIGPO_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, "secret")

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
            worker = pool.pids[0]
            child = await start(lent[0])
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


@pytest.mark.parametrize(
    "action", ["sleep 60", pytest.param("spin", marks=pytest.mark.slow), "start 1000"]
)
@pytest.mark.parametrize("how", ["killed", "exits without closing"])
def test_no_process_outlives_the_program(how: str, action: str) -> None:
    script = textwrap.dedent(
        f"""
        import asyncio, sys
        from gigpo_jax.env_bridge.processes.pool import EnvPool
        pool = EnvPool("{FAILING}FailingEnv", workers=2, envs_per_worker=1)
        async def play():
            lent = [await pool.acquire() for _ in range(2)]
            await asyncio.gather(*(env.reset(pool.tasks("train")[0]) for env in lent))
            # One worker is in the middle of a call.
            call = asyncio.ensure_future(lent[0].step("{action}"))
            await asyncio.sleep(0.5)
            texts = [call.result().observation.text] if call.done() else []
            print(*pool.pids, *texts, flush=True)
            await asyncio.sleep(0 if {how != "killed"} else 60)
            sys.exit(0)
        asyncio.run(play())
        """
    )
    root = pathlib.Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root
    ) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2 + action.startswith("start")
        if how == "killed":
            assert all(map(alive, pids))
            program.kill()
        program.wait(timeout=20)
    assert gone(pids, 10)


def test_a_worker_ends_with_its_guard() -> None:
    """The kernel may kill the guard alone, such as when memory runs out."""

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
