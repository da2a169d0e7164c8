"""Calls that wait for something outside the worker process while other calls are handled."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


class Overlaps:
    """The newest asynchronous call of each slot; calls of one slot wait for each other."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def has_call(self, slot: int) -> bool:
        """Whether a call of a slot is unfinished."""
        # Its episode was cancelled; the environment still runs its step.
        return slot in self._tasks

    def start(self, answer: Coroutine[Any, Any, None], slot: int) -> None:
        """Starts a call, behind the earlier one of its slot."""
        task = asyncio.create_task(self._answer_after(self._tasks.get(slot), answer, slot))
        # Without this reference the event loop could drop a running task.
        self._tasks[slot] = task

    async def _answer_after(
        self,
        unfinished_task: "asyncio.Task[None] | None",
        answer: Coroutine[Any, Any, None],
        slot: int,
    ) -> None:
        """Answers a call after the earlier task of its slot."""
        try:
            # `closing`: a coroutine that never starts would warn. The server handles a closed
            # socket.
            with contextlib.closing(answer), contextlib.suppress(ConnectionError):
                if unfinished_task is not None:
                    await asyncio.gather(unfinished_task, return_exceptions=True)
                await answer
        finally:
            # A later call of the slot may have put its own task there, which waits for this one.
            if self._tasks[slot] is asyncio.current_task():
                del self._tasks[slot]

    async def cancel(self) -> None:
        """Cancels all calls: the pool is gone, and nobody reads the answers."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
