"""The training loop with weights in flight, which wait for no rollout."""

import asyncio
import collections
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.modes.train import Trainer
from gigpo_jax.run.hosts import Hosts, HostsStopped, Stop
from gigpo_jax.run.loggers.metrics import Timers

WAIT_S = 0.2  # for what never comes


class StoppedHosts(Hosts):
    """Hosts of which another one stopped during the update."""

    async def share(self, work: Awaitable[Any]) -> Any:
        await asyncio.wait_for(work, WAIT_S)
        raise HostsStopped(Stop(143, "stopped"))


def make_trainer(inflight: bool, hosts: Hosts, pushes: list[int]) -> Any:
    """What the loop needs between an update and its push, behind four iterations."""
    trainer: Any = object.__new__(Trainer)
    trainer.config = default_config()
    trainer.config.train.inflight = inflight
    trainer.hosts = hosts
    trainer.done = 4
    trainer.timers = Timers()
    trainer._engine_lock = asyncio.Lock()
    trainer.learn = lambda trajectories: {}
    trainer.learner = SimpleNamespace(params=None)
    trainer.worker = SimpleNamespace(update_weights=lambda params, version: pushes.append(version))
    return trainer


@pytest.mark.parametrize("inflight", [False, True])
def test_weights_in_flight_wait_for_no_rollout(inflight: bool) -> None:
    pushes: list[int] = []

    async def update() -> None:
        trainer = make_trainer(inflight, Hosts(), pushes)
        end = asyncio.Event()
        trainer.rollouts = collections.deque([asyncio.create_task(end.wait())])
        pushing = asyncio.create_task(trainer.update([]))
        await asyncio.wait({pushing}, timeout=WAIT_S)
        assert pushes == [5] * inflight
        end.set()
        await pushing
        assert pushes == [5]

    asyncio.run(update())


@pytest.mark.parametrize("inflight", [False, True])
def test_rollouts_share_the_engine_with_weights_in_flight(inflight: bool) -> None:
    async def reserve() -> None:
        trainer = make_trainer(inflight, Hosts(), [])

        async def play() -> None:
            async with trainer.reserve_engine("rollout"):
                pass

        async with trainer.reserve_engine("rollout"):
            other = asyncio.create_task(play())
            await asyncio.wait({other}, timeout=WAIT_S)
            assert other.done() is inflight
        await other

    asyncio.run(reserve())


def test_a_host_pushes_nothing_in_flight_if_another_one_stopped() -> None:
    """The push would wait for the arrays of that host, and no checkpoint be written."""
    pushes: list[int] = []

    async def update() -> None:
        trainer = make_trainer(True, StoppedHosts(), pushes)
        trainer.rollouts = collections.deque([asyncio.create_task(asyncio.Event().wait())])
        with pytest.raises(HostsStopped):
            await trainer.update([])
        # The update counts.
        assert (trainer.done, trainer.pending) == (5, {})
        trainer.rollouts[0].cancel()

    asyncio.run(update())
    assert pushes == []
