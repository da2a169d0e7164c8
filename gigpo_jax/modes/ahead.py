"""Rollouts that run ahead of the learner (`train.max_staleness`).

A trainer is a `modes.train.Trainer`.
"""

import asyncio
import contextlib
from typing import Any, TypeVar

from gigpo_jax.trajectory import Trajectory

_T = TypeVar("_T")


async def play_again(trainer: Any) -> None:
    """Plays the rollouts that a stopped run had begun, with the weights of that time."""
    learner = trainer.learner
    remaining = trainer.config.train.iterations - trainer.done
    for version, trained in learner.older[:remaining]:
        trainer.worker.update_weights(learner.whole_policy(trained), version)
        trainer.begin_rollout()
        # To its end, before the weights of the next one arrive.
        await trainer.hosts.share(trainer.rollouts[-1])
    if trainer.rollouts:
        trainer.worker.update_weights(learner.params, trainer.done)


async def learn_beside_rollouts(trainer: Any, trajectories: list[Trajectory]) -> None:
    """Makes one iteration's updates in a thread while rollouts run.

    The new weights wait for the end of the next rollout: so an iteration learns from weights that
    are `train.max_staleness` updates old, whatever takes longer. With `train.inflight` they do not
    wait, and this age is a bound.
    """
    # A thread: the event loop goes on to feed the engine and the environments.
    learning = asyncio.get_running_loop().run_in_executor(None, trainer.learn, trajectories)
    try:
        # `wait`, because a cancellation of this coroutine must not cancel the future of the thread.
        await asyncio.wait({learning})
    finally:
        # The learner's state is donated to the update: until the thread returns, there is none to
        # save.
        trainer.pending = await wait_uninterrupted(learning)
        trainer.done += 1
    # It raises what the rollout failed with. In flight the weights wait for no rollout, but all
    # hosts push together, or none does: they gather arrays from each other.
    is_inflight = trainer.config.train.inflight
    await trainer.hosts.share(asyncio.sleep(0) if is_inflight else trainer.rollouts[0])


async def wait_uninterrupted(work: asyncio.Future[_T]) -> _T:
    """Waits for work that cannot be stopped, despite cancellations of this coroutine."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({work})
    return work.result()
