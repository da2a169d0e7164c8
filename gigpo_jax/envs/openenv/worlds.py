"""The environments over OpenEnv: a server for them and its client (docs/interfaces.md).

gigpo envs openenv alfworld --panel valid_unseen --port 8000
"""

import base64
import contextlib
import random
import socket
from functools import partial
from typing import Any

import uvicorn
from openenv.core import Action, EnvClient, Environment, Observation, State
from openenv.core.client_types import StepResult
from openenv.core.env_server.http_server import create_fastapi_app

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.png import encode_png
from gigpo_jax.core.web_server import refuse_foreign_hosts
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.world import World, WorldStep


class WorldAction(Action):
    """An action, or the whole response of a language model."""

    action: str | None = None
    response: str | None = None


class WorldObservation(Observation):
    """An observation as in `types.Observation` and `world.WorldStep`; images are PNG in base64."""

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
    """The task of the episode."""

    environment: str
    tasks: str
    task_id: str = ""
    task_type: str = ""


class WorldEnvironment(Environment[WorldAction, WorldObservation, WorldState]):
    """A session of the server with one episode at once."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._player = world.play()
        self._random = random.Random()
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
        """Starts an episode.

        Args:
          seed: Seed of the random task.
          episode_id: Id of the episode in `state`.
          task: Index or id of a task; without it and `index` the task is random.
          split: Panel or split that is served; OpenEnv's Task API gives it.
          index: Index of a task; OpenEnv's Task API gives it.
          **unknown: Other arguments are refused.
        """
        # A misspelt argument would silently give a random task.
        if unknown:
            raise InputError(f"{sorted(unknown)} not known", key="reset", fix="give task, or seed")
        self._check_split(split or self._world.tasks_name)
        if seed is not None:
            self._random.seed(seed)
        if task is None:
            task = index
        if task is None:
            task = self._random.randrange(len(self._world.tasks))
        episode_task = self._world.task(task)
        self._state = WorldState(
            episode_id=episode_id,
            environment=self._world.name,
            tasks=self._world.tasks_name,
            task_id=episode_task.id,
            task_type=episode_task.type,
        )
        return _encode_step(self._player.reset(episode_task))

    def step(
        self, action: WorldAction, timeout_s: float | None = None, **kwargs: Any
    ) -> WorldObservation:
        """Plays an action, or the action in a response."""
        # Exactly one: with both it would be unclear which one counts.
        if action.action is not None and action.response is None:
            step = self._player.act(action.action)
        elif action.response is not None and action.action is None:
            step = self._player.respond(action.response)
        else:
            raise InputError(
                "has both or neither of action and response", key="step", fix="give one of them"
            )
        # After the step: a refused action counts no step.
        self._state.step_count += 1
        return _encode_step(step)

    @property
    def state(self) -> WorldState:
        return self._state

    def _check_split(self, split: str) -> None:
        if split != self._world.tasks_name:
            raise InputError(
                f"this server has {self._world.tasks_name}", key="split", value=repr(split)
            )

    def list_splits(self) -> list[str]:
        return [self._world.tasks_name]

    def num_tasks(self, split: str) -> int:
        self._check_split(split)
        return len(self._world.tasks)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        self._check_split(split)
        tasks = [_list_task_fields(index, task) for index, task in enumerate(self._world.tasks)]
        return tasks[start:stop]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        self._check_split(split)
        if not 0 <= index < len(self._world.tasks):
            raise IndexError(index)
        return _list_task_fields(index, self._world.tasks[index])

    def close(self) -> None:
        self._player.close()


def _list_task_fields(index: int, task: Task) -> dict[str, Any]:
    return {"index": index, "id": task.id, "type": task.type}


def _encode_step(step: WorldStep) -> WorldObservation:
    observation = step.observation
    admissible = None
    if observation.admissible is not None:
        admissible = list(observation.admissible)
    return WorldObservation(
        done=step.done,
        reward=step.reward,
        text=observation.text,
        prompt=step.prompt,
        task=observation.task,
        anchor=observation.anchor,
        admissible=admissible,
        images=[base64.b64encode(encode_png(image)).decode() for image in step.images],
        won=step.won,
        score=step.score,
        truncated=step.truncated,
        valid=step.valid,
    )


class WorldClient(EnvClient[WorldAction, WorldObservation, WorldState]):
    """Plays on a server: `reset(task=..)`, `step(WorldAction(action=..))`, `state()`.

    `.sync()` returns the same client for callers without await.
    """

    def _step_payload(self, action: WorldAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[WorldObservation]:
        observation = WorldObservation(
            done=payload["done"], reward=payload["reward"], **payload["observation"]
        )
        return StepResult(observation, observation.reward, observation.done)

    def _parse_state(self, payload: dict[str, Any]) -> WorldState:
        return WorldState(**payload)


def make_app(world: World, sessions: int) -> Any:
    """Makes the FastAPI application of a world, which plays at most `sessions` episodes at once."""
    # One world with its list of tasks for all sessions; each has a player of its own.
    factory = partial(WorldEnvironment, world)
    return create_fastapi_app(
        factory, WorldAction, WorldObservation, sessions, env_name=world.name, state_cls=WorldState
    )


def serve_world(world: World, host: str, port: int, sessions: int) -> None:
    """Serves a world until interrupted, and prints its URL.

    Raises:
      InputError: A port or a number of sessions that cannot be used.
    """
    check_whole("--port", port, 0, 65535)
    check_whole("--sessions", sessions, 1)
    # Opened here and not by uvicorn: an error is one line, and the port is known before the start.
    listener = _open_listener(host, port)
    print(f"http://{host}:{listener.getsockname()[1]}", flush=True)
    # A page of another site could reach loopback through a name of its own (DNS rebinding).
    app = refuse_foreign_hosts(make_app(world, sessions), host, "--host=")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    # uvicorn raises KeyboardInterrupt again after it has closed all sessions.
    with contextlib.suppress(KeyboardInterrupt):
        server.run([listener])


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as err:
        raise InputError(
            f"cannot be listened on ({err.strerror})",
            key=f"--host={host} --port",
            value=port,
            fix="give --port=0 for a free one",
        ) from err
