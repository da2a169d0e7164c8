"""One event loop in a thread, for packages whose calls are coroutines.

The loop of a worker process handles the pool's calls, and a `reset` blocks it.
"""

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


@functools.cache
def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # A daemon: it must not keep a process alive whose other work is done.
    threading.Thread(target=loop.run_forever, name="background", daemon=True).start()
    return loop


def submit(call: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T]":
    """Starts a coroutine in the thread of the loop."""
    return asyncio.run_coroutine_threadsafe(call, _start_loop())


def run(call: Coroutine[Any, Any, _T], limit_s: float | None = None) -> _T:
    """Runs a coroutine in the thread of the loop; blocks.

    Raises:
      TimeoutError: It took longer than `limit_s`; it is cancelled.
    """
    future = submit(call)
    try:
        return future.result(limit_s)
    except TimeoutError:
        future.cancel()
        raise
