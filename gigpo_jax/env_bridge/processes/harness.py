"""A harness in a worker process: an environment whose one step is a whole episode.

So an agent program has the worker processes of environments, which are replaced when they die or
hang.
"""

import asyncio
import dataclasses
import functools
import inspect
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gigpo_jax.env_bridge.harnesses import Harness, SessionAddress
from gigpo_jax.env_bridge.processes.build import build_object
from gigpo_jax.env_bridge.types import Observation, StepResult, Task

BUILD = "gigpo_jax.env_bridge.processes.harness:HarnessEnv"
_EMPTY_OBSERVATION = Observation("", "", None, "")


def encode_address(address: SessionAddress) -> str:
    """Encodes an address as an action with which a `HarnessEnv` plays its episode."""
    return json.dumps(dataclasses.asdict(address))


class HarnessEnv:
    """Plays episodes with a `harnesses.Harness`.

    Its results are empty, because reward and steps are in the session.
    """

    def __init__(self, program: str, options: Mapping[str, Any]) -> None:
        """Builds the harness that "module:NAME" names; raises InputError as `build_object`."""
        self._harness: Harness = build_object(program, options)
        self._task = Task("", "", "")

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split."""
        return self._harness.tasks(split)

    def reset(self, task: Task) -> Observation:
        """Stores the task; the observation is empty."""
        self._task = task
        return _EMPTY_OBSERVATION

    async def step_async(self, action: str) -> StepResult:
        """Plays the episode of `action`, an address as from `encode_address`.

        Episodes of other slots run at the same time.
        """
        address = SessionAddress(**json.loads(action))
        play: Any = functools.partial(self._harness.play, self._task, address)
        # A plain function would block the worker's event loop, and so the episodes of all other
        # slots.
        if inspect.iscoroutinefunction(self._harness.play):
            await play()
        else:
            await _run_in_thread(play)
        return StepResult(_EMPTY_OBSERVATION, 0.0, True, {"won": False, "score": 0.0})

    def close(self) -> None:
        """Closes the harness."""
        self._harness.close()


def _run_in_thread(function: Callable[[], object]) -> "asyncio.Future[None]":
    """Runs a function in a daemon thread.

    Threads of an executor would delay the end of the process until the function returns.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        # The call was cancelled; the thread cannot be stopped, and its result is of no use.
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            function()
        except StopIteration:  # a future refuses it
            error = RuntimeError("play raised StopIteration")
        except BaseException as err:  # SystemExit too costs the episode, not the worker
            error = err
        # Futures are not thread-safe: only the loop's thread may set a result.
        loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, daemon=True).start()
    return future
