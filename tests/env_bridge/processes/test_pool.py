"""The pool with real processes: answers, and failures of every kind while episodes run."""

import asyncio
import os
import signal
import time

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.processes import pool as pool_module
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs import registry
from tests.env_bridge.processes.pools import EXAMPLE, FAILING, lend_all, outcomes
from tests.processes import gone, patience


def test_128_episodes_at_once_give_what_the_environment_gives_alone() -> None:
    with EnvPool(EXAMPLE, {"drawers": 5}, workers=2, envs_per_worker=32) as pool:
        alone = registry.make("example", drawers=5)
        assert pool.tasks("train") == list(alone.tasks("train"))
        actions = [
            "open drawer 1",
            "nonsense",
            "close drawer 1",
            "open drawer 3",
            "take coin",
            "take ring",
        ]

        async def play(index: int) -> list[object]:
            async with pool.episode() as environment:
                outputs: list[object] = [await environment.reset(pool.tasks("train")[index % 64])]
                for action in actions:
                    outputs.append(await environment.step(action))
                return outputs

        async def play_all() -> list[list[object]]:
            return await asyncio.gather(*(play(index) for index in range(128)))

        for _ in range(2):  # two event loops, one after the other
            for index, outputs in enumerate(asyncio.run(play_all())):
                expected: list[object] = [alone.reset(pool.tasks("train")[index % 64])]
                expected += [alone.step(action) for action in actions]
                assert outputs == expected
        assert pool.replaced == 0


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(InputError, match=r"^workers=0: must be a whole number of at least 1"):
        EnvPool(EXAMPLE, workers=0, envs_per_worker=2)


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
def test_a_lost_worker_costs_its_own_episodes_and_is_replaced(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss of a worker that was ready is no failed start, of which here one is too many.
    monkeypatch.setattr(pool_module, "_MAX_FAILED_STARTS", 1)

    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)  # places alternate between the two workers
        victim = pool.pids[0]
        os.kill(victim, number)
        started = time.monotonic()
        results = await outcomes([environment.step("open drawer 1") for environment in lent])
        assert time.monotonic() - started < patience(8)
        failures = results[0::2]
        successes = results[1::2]
        assert all(isinstance(result, EnvError) for result in failures)
        expected = (
            "died with status 137"
            if number == signal.SIGKILL
            else "gave no answer within 2 s (step)"
        )
        assert all(expected in str(result) and str(victim) in str(result) for result in failures)
        assert not any(isinstance(result, BaseException) for result in successes)
        assert gone([victim], 5)
        with pytest.raises(EnvError, match=str(victim)):  # the episode is lost, not only the call
            await lent[0].step("open drawer 1")
        assert pool.replaced == 1
        for environment in lent:
            environment.release()
        lent = await lend_all(pool)
        results = await outcomes([environment.step("open drawer 1") for environment in lent])
        assert not any(isinstance(result, BaseException) for result in results)

    with EnvPool(EXAMPLE, workers=2, envs_per_worker=3, step_timeout_s=2.0) as pool:
        asyncio.run(scenario(pool))


def test_an_environment_that_hangs_or_ends_its_process_costs_one_worker() -> None:
    async def scenario(pool: EnvPool) -> None:
        for action, expected in (
            ("sleep 60", "no answer within 2 s"),
            ("exit 7", "died with status 7"),
        ):
            lent = await lend_all(pool)
            calls = [
                lent[0].step("look"),
                lent[0].step(action),
                lent[1].step("sleep 0.5"),
                lent[2].step("look"),
            ]
            results = await outcomes(list(calls))
            assert isinstance(results[1], EnvError)
            assert expected in str(results[1])
            assert not isinstance(results[0], BaseException), "it was answered before"
            assert not isinstance(results[2], BaseException), "the other worker continues"
            assert str(results[3]) == str(results[1]), "this episode was in the same process"
            for environment in lent:
                environment.release()
        assert pool.replaced == 2

    with EnvPool(FAILING + "FailingEnv", workers=2, envs_per_worker=2, step_timeout_s=2.0) as pool:
        asyncio.run(scenario(pool))


def test_an_environment_that_raises_costs_its_episode_alone() -> None:
    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)
        results = await outcomes(
            [lent[0].step("raise here"), lent[1].step("open drawer 1"), lent[2].step("print")]
        )
        assert isinstance(results[0], EnvError)
        assert "KeyError: 'here' (failing.py:" in str(results[0])
        assert not any(isinstance(result, BaseException) for result in results[1:])
        observation = await lent[0].reset(pool.tasks("train")[1])  # built anew
        assert observation.text.startswith("You stand")
        results = await outcomes([lent[1].step("leave"), lent[2].step("open drawer 1")])
        assert "SystemExit: 0 (failing.py:" in str(results[0])
        assert not isinstance(results[1], BaseException)
        assert pool.replaced == 0

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=3) as pool:
        asyncio.run(scenario(pool))


def test_a_call_is_timed_from_when_its_worker_turns_to_it() -> None:
    async def scenario(pool: EnvPool) -> None:
        lent = await lend_all(pool)
        results = await outcomes(
            [environment.step("sleep 0.8") for environment in lent]
        )  # 6.4 s one after the other
        assert not any(isinstance(result, BaseException) for result in results)
        pending = asyncio.ensure_future(lent[0].step("open drawer 1"))
        await asyncio.sleep(0)
        time.sleep(
            5.5
        )  # this process is busy for longer than the limit; the answer has come meanwhile
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
        assert time.monotonic() - started < patience(5), "one after the other would take 6.5 s"
        assert order.index(7) < order.index(1) < order.index(0)
        assert [
            index for index, result in enumerate(results) if isinstance(result, BaseException)
        ] == [6]
        assert "KeyError: 'here'" in str(results[6])
        assert getattr(results[7], "observation").text.startswith("You open the drawer 1")  # noqa: B009
        # An environment whose step was given up is not touched before that step has ended.
        given_up = asyncio.ensure_future(lent[0].step("sleep 1"))
        await asyncio.sleep(0.1)
        given_up.cancel()
        started = time.monotonic()
        assert (await lent[0].reset(pool.tasks("train")[0])).text.startswith("You stand")
        assert time.monotonic() - started > 0.5
        # Its calls wait in order, calls of other environments do not.
        given_up = asyncio.ensure_future(lent[0].step("sleep 2"))
        await asyncio.sleep(0.1)
        given_up.cancel()
        again = asyncio.ensure_future(lent[0].reset(pool.tasks("train")[0]))
        await asyncio.sleep(0.1)
        next_one = asyncio.ensure_future(lent[0].step("open drawer 1"))
        await lent[1].step("open drawer 1")
        assert not again.done()
        assert (await again).text.startswith("You stand")
        assert (await next_one).observation.text.startswith("You open the drawer 1")
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

        first = asyncio.create_task(episode("sleep 0.5"))
        waiting = asyncio.create_task(episode("open drawer 1"))
        await asyncio.sleep(0.1)
        third = asyncio.create_task(episode("open drawer 2"))
        await asyncio.sleep(0)
        first.cancel()
        waiting.cancel()
        assert (await asyncio.wait_for(third, 5)).startswith("You open the drawer 2")
        environment = await pool.acquire()
        waiter = asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        environment.release()
        waiter.cancel()  # it was lent the place already, and never learns of it
        await asyncio.wait_for(pool.acquire(), 5)

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=1) as pool:
        asyncio.run(scenario(pool))
