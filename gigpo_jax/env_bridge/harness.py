"""A harness in a worker process: an environment whose one step is a whole episode.

So an agent program has what environments have: processes of its own that are replaced when they die or hang.
"""

import asyncio
import dataclasses
import functools
import inspect
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gigpo_jax.env_bridge.base import Harness, SessionAddress
from gigpo_jax.env_bridge.build import build
from gigpo_jax.env_bridge.types import Observation, StepResult, Task

BUILD = "gigpo_jax.env_bridge.harness:HarnessEnv"
_NOTHING = Observation("", "", None, "")


def as_action(address: SessionAddress) -> str:
    """The action that lets a `HarnessEnv` play its episode."""
    return json.dumps(dataclasses.asdict(address))


class HarnessEnv:
    """Plays episodes with a `base.Harness`; reward and steps are in the session, so its results are empty."""

    def __init__(self, program: str, options: Mapping[str, Any]) -> None:
        """Builds the harness that "module:NAME" names; raises InputError as `build`."""
        self._harness: Harness = build(program, options)
        self._task = Task("", "", "")

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split."""
        return self._harness.tasks(split)

    def reset(self, task: Task) -> Observation:
        """Notes the task; the observation is empty."""
        self._task = task
        return _NOTHING

    async def step_async(self, action: str) -> StepResult:
        """Plays the episode, beside those of other slots; `action` is as from `as_action`."""
        play: Any = functools.partial(self._harness.play, self._task, SessionAddress(**json.loads(action)))
        await (play() if inspect.iscoroutinefunction(self._harness.play) else _in_thread(play))
        return StepResult(_NOTHING, 0.0, True, {"won": False, "score": 0.0})

    def close(self) -> None:
        """Closes the harness."""
        self._harness.close()


def _in_thread(function: Callable[[], object]) -> "asyncio.Future[None]":
    """Runs a function in a thread that, unlike those of an executor, does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(None)

    def run() -> None:
        try:
            function()
        except StopIteration:  # a future refuses it
            loop.call_soon_threadsafe(settle, RuntimeError("play raised StopIteration"))
        except BaseException as err:  # SystemExit too: it costs the episode, as elsewhere in the worker
            loop.call_soon_threadsafe(settle, err)
        else:
            loop.call_soon_threadsafe(settle, None)

    threading.Thread(target=run, daemon=True).start()
    return future
