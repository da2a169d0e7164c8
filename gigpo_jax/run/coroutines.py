"""Runs coroutines that SIGTERM and Ctrl-C cancel."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gigpo_jax.run.interrupts import Interrupted, Interrupts

_T = TypeVar("_T")


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, cancelled by SIGTERM and SIGINT; then raises `Interrupted`."""
    task: asyncio.Task[_T] | None = None

    def cancel() -> None:
        # An interrupt may come before there is a task, and after its loop was closed.
        if task is not None and not task.get_loop().is_closed():
            # The thread-safe call also wakes a loop that waits for its sockets.
            task.get_loop().call_soon_threadsafe(task.cancel)

    interrupts = Interrupts(cancel)
    with interrupts, asyncio.Runner() as runner:
        task = runner.get_loop().create_task(work)
        if interrupts.status:
            task.cancel()
        try:
            return runner.get_loop().run_until_complete(task)
        except asyncio.CancelledError:
            # Another cancellation, such as a bug of the coroutine: not an interrupt.
            if not interrupts.status:
                raise
    raise Interrupted(interrupts.status)
