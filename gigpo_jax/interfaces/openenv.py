"""The environments over OpenEnv: a server for them and its client (docs/interfaces.md).

python -m gigpo_jax.interfaces.openenv alfworld --panel valid_unseen --port 8000
"""

import argparse
import base64
import contextlib
import random
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.png import encode_png
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs.options import key_value
from gigpo_jax.errors import InputError, printable
from gigpo_jax.interfaces.world import Step, World, open_world

try:
    import uvicorn
    from openenv.core import Action, EnvClient, Environment, Observation, State
    from openenv.core.client_types import StepResult
    from openenv.core.env_server.http_server import create_fastapi_app
except ModuleNotFoundError as err:
    if __name__ != "__main__":
        raise
    sys.stderr.write(f"{err}; pip install 'gigpo_jax[openenv]'\n")
    sys.exit(2)

SESSIONS = 64  # episodes at once


class WorldAction(Action):
    """An action of the environment, or the whole response of a language model: one of them."""

    action: str | None = None
    response: str | None = None


class WorldObservation(Observation):
    """What an agent sees; the fields are those of `types.Observation` and `world.Step`, images are PNG in base64."""

    text: str
    prompt: str
    task: str
    anchor: str
    admissible: list[str] | None
    images: list[str]
    won: bool
    score: float
    truncated: bool
    valid: bool


class WorldState(State):
    """Which task is played."""

    environment: str
    tasks: str
    task_id: str = ""
    task_type: str = ""


class WorldEnvironment(Environment[WorldAction, WorldObservation, WorldState]):
    """One session of the server: plays one episode at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self._player, self._random = world, world.play(), random.Random()
        self._state = WorldState(environment=world.name, tasks=world.tasks_name)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: int | str | None = None,
        split: str | None = None,
        index: int | None = None,
        **unknown: Any,
    ) -> WorldObservation:
        """Starts an episode of a task: a place in the list of tasks or an id; without one it is drawn, by the seed.

        `split` and `index` are those of OpenEnv's Task API; the only split is the panel or split that is served.
        """
        if unknown:
            raise InputError(f"reset: {sorted(unknown)} not known; give task, or seed")
        self._check_split(split or self._world.tasks_name)
        if seed is not None:
            self._random.seed(seed)
        which = index if task is None else task
        drawn = self._random.randrange(len(self._world.tasks)) if which is None else which
        chosen = self._world.task(drawn)
        self._state = WorldState(
            episode_id=episode_id,
            environment=self._world.name,
            tasks=self._world.tasks_name,
            task_id=chosen.id,
            task_type=chosen.type,
        )
        return _observation(self._player.reset(chosen))

    def step(self, action: WorldAction, timeout_s: float | None = None, **kwargs: Any) -> WorldObservation:
        """Plays an action, or the action in a response."""
        if action.action is not None and action.response is None:
            step = self._player.act(action.action)
        elif action.response is not None and action.action is None:
            step = self._player.respond(action.response)
        else:
            raise InputError("step: give either action or response")
        self._state.step_count += 1
        return _observation(step)

    @property
    def state(self) -> WorldState:
        return self._state

    def _check_split(self, split: str) -> None:
        if split != self._world.tasks_name:
            raise InputError(f"split={split!r}: this server has {self._world.tasks_name}")

    def list_splits(self) -> list[str]:
        return [self._world.tasks_name]

    def num_tasks(self, split: str) -> int:
        self._check_split(split)
        return len(self._world.tasks)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        self._check_split(split)
        return [_task(index, task) for index, task in enumerate(self._world.tasks)][start:stop]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        self._check_split(split)
        if not 0 <= index < len(self._world.tasks):
            raise IndexError(index)
        return _task(index, self._world.tasks[index])

    def close(self) -> None:
        self._player.close()


def _task(index: int, task: Task) -> dict[str, Any]:
    return {"index": index, "id": task.id, "type": task.type}


def _observation(step: Step) -> WorldObservation:
    seen = step.observation
    return WorldObservation(
        done=step.done,
        reward=step.reward,
        text=seen.text,
        prompt=step.prompt,
        task=seen.task,
        anchor=seen.anchor,
        admissible=None if seen.admissible is None else list(seen.admissible),
        images=[base64.b64encode(encode_png(image)).decode() for image in step.images],
        won=step.won,
        score=step.score,
        truncated=step.truncated,
        valid=step.valid,
    )


class WorldClient(EnvClient[WorldAction, WorldObservation, WorldState]):
    """Plays on a server: `reset(task=..)`, `step(WorldAction(action=..))`, `state()`; `.sync()` without await."""

    def _step_payload(self, action: WorldAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[WorldObservation]:
        seen = WorldObservation(done=payload["done"], reward=payload["reward"], **payload["observation"])
        return StepResult(seen, seen.reward, seen.done)

    def _parse_state(self, payload: dict[str, Any]) -> WorldState:
        return WorldState(**payload)


def app(world: World, *, sessions: int = SESSIONS) -> Any:
    """The FastAPI application that serves a world, for at most so many episodes at once."""
    factory = partial(WorldEnvironment, world)
    return create_fastapi_app(
        factory, WorldAction, WorldObservation, sessions, env_name=world.name, state_cls=WorldState
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serves a world until it is interrupted; returns the exit status: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m gigpo_jax.interfaces.openenv", description=__doc__)
    parser.add_argument("name", metavar="ENV", help="a name of the registry, or module:NAME")
    parser.add_argument("--panel", help="a panel of the package, or a panel file")
    parser.add_argument("--split", help="all tasks of a split instead")
    parser.add_argument("--prompt", default="full", help="style of the prompts")
    parser.add_argument("--history", type=int, metavar="N", help="past steps that a prompt shows")
    parser.add_argument("--option", action="append", type=key_value, default=[], metavar="KEY=VALUE", help="repeatable")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine only")
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="0 = any free one; it is printed")
    parser.add_argument("--sessions", type=int, default=SESSIONS, metavar="N", help="the most episodes at once")
    args = parser.parse_args(argv)
    try:
        check_whole("--port", args.port, 0, 65535)
        check_whole("--sessions", args.sessions, 1)
        known = {"panel": args.panel, "split": args.split, "prompt": args.prompt, "history": args.history}
        world = open_world(args.name, **known, **dict(args.option))
        listener = _listen(args.host, args.port)
    except (InputError, EnvError) as err:
        sys.stderr.write(printable(f"{err}\n"))
        return 2
    print(f"http://{args.host}:{listener.getsockname()[1]}", flush=True)
    server = uvicorn.Server(uvicorn.Config(app(world, sessions=args.sessions), log_level="warning"))
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has closed all sessions
        server.run([listener])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as err:
        raise InputError(f"--host {host} --port {port}: {err.strerror}; --port 0 takes a free one") from err


if __name__ == "__main__":
    sys.exit(main())
