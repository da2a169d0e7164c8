"""The environment of an OpenEnv server as a text environment (docs/openenv.md).

A task is a seed of `reset`, or a task that the server lists.
"""

import asyncio
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.types import EnvError, Observation, StepError, StepResult, Task
from gigpo_jax.envs import background
from gigpo_jax.envs.games import SPLITS
from gigpo_jax.envs.gymnasium.env import FIRST_SEEDS
from gigpo_jax.envs.openenv.docker import start_container
from gigpo_jax.envs.openenv.schema import (
    ActionForm,
    find_text_field,
    read_action_schema,
    show_fields,
)
from gigpo_jax.envs.tool_calls import ActionError, limit_text

START = "The episode begins."
TASK = "get as much reward as you can"
_NAME_KEY = "config.env.name"
_START_INFO: dict[str, bool | float] = {"won": False, "score": 0.0}


class OpenEnvEnv:
    """A `TextEnv` of an OpenEnv server, with one session of the server for all its episodes.

    `prepare` or the first `reset` opens the session.
    """

    def __init__(
        self,
        source: str,
        *,
        tasks: str = "seeds",
        kwargs: Mapping[str, Any] | None = None,
        field: str = "",
        actions: Sequence[str] | None = None,
        admissible: str = "",
        text: str = "",
        task: str = TASK,
        task_field: str = "",
        anchor: str = "text",
        won_above: float = 0.0,
        answer_timeout_s: float = 20.0,
        result_characters: int = 4000,
    ) -> None:
        """Checks the options; the server is not asked yet.

        Args:
          source: URL of a server, or image of a container.
          tasks: "seeds" of `reset`, or "server": the tasks that the server lists.
          kwargs: Further arguments of each `reset`.
          field: Field of actions that the policy fills; "": the only one or the required one, or
            else the whole action as JSON.
          actions: Names of discrete actions; None: their values.
          admissible: Field of observations that lists the possible values of `field`.
          text: Field of observations that is shown; "": the only text, or else all fields.
          task: Words of the task.
          task_field: Field of the first observation with the words of the task.
          anchor: Anchor state: "text", "state" (all actions so far), or a field of observations.
          won_above: Reward above which an episode that ends is won.
          answer_timeout_s: Time limit of each answer, s.
          result_characters: Largest number of characters of an observation.

        Raises:
          InputError: A missing package or an option that cannot be used.
        """
        if tasks not in ("seeds", "server"):
            raise InputError("must be seeds or server", key="tasks", value=repr(tasks))
        if not answer_timeout_s > 0:
            raise InputError("must be above 0", key="answer_timeout_s", value=answer_timeout_s)
        check_whole("result_characters", result_characters, 1)
        if not source:
            raise InputError(
                "no URL and no image",
                key=_NAME_KEY,
                fix="name one, such as openenv:http://127.0.0.1:8000",
            )
        self._source = source
        self._lists_tasks = tasks == "server"
        self._kwargs = dict(kwargs or {})
        self._field = field
        self._names = actions
        self._admissible_field = admissible
        self._text_field = text
        self._task_words = task
        self._task_field = task_field
        self._anchor = anchor
        self._won_above = won_above
        self._limit_s = answer_timeout_s
        self._result_characters = result_characters
        self._session: Any = None
        self._form: ActionForm | None = None
        self._words = ""
        self._actions: list[str] = []
        self._result: StepResult | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """Lists a split's tasks: seeds, or indices of the server's own tasks."""
        count = self._count_tasks(split) if self._lists_tasks else SPLITS.get(split)
        if count is None:
            raise InputError(
                f"this environment has the splits {', '.join(SPLITS)}",
                key="config.env.split",
                value=repr(split),
            )
        first = 0 if self._lists_tasks else FIRST_SEEDS[split]
        return [
            Task(f"{split}/{number:05d}", "", split, data=str(first + number))
            for number in range(count)
        ]

    def digest(self, task: Task) -> str:
        """SHA-256 of the first observation, in hexadecimal; panels freeze it."""
        observation = self.reset(task)
        return hashlib.sha256(f"{observation.task}\n{observation.text}".encode()).hexdigest()

    def prepare(self) -> None:
        """Starts one episode; bad input ends the command here."""
        try:
            task = Task("", "", "train", str(FIRST_SEEDS["train"]))
            # Without a split: a server that lists its tasks may not have this one.
            self._start(task, {} if self._lists_tasks else None)
        except EnvError as err:
            self.close()
            raise InputError(
                f"no OpenEnv server plays there ({err})", key=_NAME_KEY, value=self._name
            ) from err

    def reset(self, task: Task) -> Observation:
        return self._start(task, None)

    def step(self, action: str) -> StepResult:
        """Acts; a text that is no action changes nothing."""
        return background.run(self.step_async(action))

    async def step_async(self, action: str) -> StepResult:
        """`step` while the worker plays other episodes."""
        message = self._read_action(action)
        if isinstance(message, StepResult):
            return message
        data = await asyncio.wrap_future(background.submit(self._send(message)))
        return self._finish_step(action, data)

    def close(self) -> None:
        session = self._session
        self._session = None
        self._result = None
        if session is not None:
            background.run(session.close())

    @property
    def _name(self) -> str:
        return repr(f"openenv:{self._source}")

    def _find_url(self) -> str:
        """The URL of the server, whose container starts here if the source is an image."""
        if self._source.startswith(("http://", "https://")):
            return self._source.rstrip("/")
        return start_container(self._source, self._limit_s)

    def _count_tasks(self, split: str) -> int:
        """Asks the server for the number of its tasks."""
        fetch_json = _load_client(self._name).fetch_json
        url = self._find_url()
        try:
            (environment,) = background.run(fetch_json(f"{url}/list_environments", self._limit_s))
            address = f"{url}/{environment}/num_tasks"
            answer = background.run(fetch_json(address, self._limit_s, {"split": split}))
            count = answer["num_tasks"]
            check_whole("num_tasks", count, 1)
        except (EnvError, TypeError, KeyError, ValueError) as err:
            raise InputError(
                f"the server lists no tasks of the split {split!r} ({err})",
                key="config.env.options.tasks",
                value="'server'",
                fix="use seeds, or another split",
            ) from err
        return int(count)

    def _start(self, task: Task, arguments: dict[str, Any] | None) -> Observation:
        """Starts an episode.

        Args:
          task: Task.
          arguments: Arguments of `reset`; None: as the task says.
        """
        client = _load_client(self._name)
        if self._session is None:
            self._connect(client)
        if arguments is None:
            number = int(task.data)
            arguments = {"seed": number}
            if self._lists_tasks:
                arguments = {"split": task.split, "index": number}
        self._actions = []
        call = self._session.start_episode({**self._kwargs, **arguments})
        data = background.run(call)
        observation = _read_observation(data)
        self._words = self._task_words
        if self._task_field:
            self._words = str(self._read_field(observation, self._task_field, "task_field"))
        assert self._form is not None
        self._words = "\n".join(filter(None, [self._words, self._form.describe()]))
        first_observation = self._observe(observation)
        self._result = StepResult(first_observation, 0.0, False, _START_INFO)
        return first_observation

    def _connect(self, client: Any) -> None:
        """Reads the schema; the first episode opens the connection."""
        url = self._find_url()
        schema = background.run(client.fetch_json(f"{url}/schema", self._limit_s))
        if not isinstance(schema, dict):
            raise EnvError("its schema is no JSON object")
        self._form = read_action_schema(schema.get("action"), self._field, self._names)
        if not self._text_field:
            self._text_field = find_text_field(schema.get("observation"))
        self._session = client.ServerSession(url, self._limit_s)

    def _read_action(self, action: str) -> dict[str, Any] | StepResult:
        """Reads the server's action, or gives the result without one."""
        if self._result is None or self._form is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if self._result.done:
            return StepResult(self._result.observation, 0.0, True, self._result.info)
        try:
            return self._form.read(action)
        except ActionError as err:
            return self._refuse(str(err))

    async def _send(self, action: dict[str, Any]) -> dict[str, Any] | str:
        """Sends an action; returns the answer, or a text with the server's reason to refuse it."""
        client = _load_client(self._name)
        try:
            return await self._session.ask("step", action)
        except client.ActionRefused as err:
            return str(err)

    def _refuse(self, reason: str) -> StepResult:
        """The result of an action without effect: the reason, then the last observation."""
        assert self._result is not None
        observation = self._result.observation
        text = limit_text(f"{reason}\n{observation.text}", self._result_characters)
        return StepResult(dataclasses.replace(observation, text=text), 0.0, False, _START_INFO)

    def _finish_step(self, action: str, data: dict[str, Any] | str) -> StepResult:
        if isinstance(data, str):
            return self._refuse(f"The server refuses the action: {data}")
        observation = _read_observation(data)
        done = data.get("done", False)
        reward = data.get("reward")
        if not isinstance(done, bool) or not isinstance(reward, (bool, int, float, type(None))):
            raise StepError(f"done is {done!r:.100} and reward {reward!r:.100}")
        self._actions.append(action)
        won = done and float(reward or 0.0) > self._won_above
        info: dict[str, bool | float] = {"won": won, "score": float(won)}
        self._result = StepResult(self._observe(observation), float(reward or 0.0), done, info)
        return self._result

    def _observe(self, observation: dict[str, Any]) -> Observation:
        text = show_fields(observation)
        if self._text_field:
            text = str(self._read_field(observation, self._text_field, "text"))
        text = limit_text(text, self._result_characters)
        if self._anchor == "text":
            anchor = text
        elif self._anchor == "state":
            anchor = "\n".join([START, *self._actions])
        else:
            anchor = str(self._read_field(observation, self._anchor, "anchor"))
        # An empty text is a state like others.
        return Observation(text, anchor or START, self._list_actions(observation), self._words)

    def _list_actions(self, observation: dict[str, Any]) -> tuple[str, ...] | None:
        assert self._form is not None
        if not self._admissible_field:
            return tuple(name for name, _ in self._form.choices) or None
        values = self._read_field(observation, self._admissible_field, "admissible")
        if not isinstance(values, list):
            raise StepError(f"the field {self._admissible_field!r} is no list")
        return tuple(self._form.name(value) for value in values)

    def _read_field(self, observation: dict[str, Any], field: str, option: str) -> Any:
        if field not in observation:
            raise StepError(
                f"option {option}: the observation has no field {field!r}, "
                f"only {', '.join(observation) or 'none'}"
            )
        return observation[field]


def _load_client(name: str) -> Any:
    """Imports the client; raises InputError where its package is missing."""
    with optional_imports("serve", key=_NAME_KEY, value=name):
        from gigpo_jax.envs.openenv import client
    return client


def _read_observation(data: dict[str, Any]) -> dict[str, Any]:
    observation = data.get("observation")
    if not isinstance(observation, dict):
        raise StepError("the answer has no observation")
    return observation
