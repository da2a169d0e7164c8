"""An environment of verifiers as a text environment (docs/verifiers.md).

The package runs its own rollout; where that asks its model for a message, it gets the policy's
response. The reward of the rubric comes at the end of the episode.
"""

import asyncio
import functools
import hashlib
import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.option_checks import check_split
from gigpo_jax.env_bridge.types import EnvError, Observation, StepError, StepResult, Task
from gigpo_jax.envs import background
from gigpo_jax.envs.tool_calls import (
    FORMAT,
    ActionError,
    ToolCall,
    describe_tool,
    limit_text,
    read_action,
)

START = "You have not answered yet."
END = "The episode is over."
_STOP_S = 5.0  # for the cleanup of an episode that was left
_NAME_KEY = "config.env.name"
_START_INFO: dict[str, bool | float] = {"won": False, "score": 0.0}


class VerifiersEnv:
    """A `TextEnv` of an environment of verifiers.

    All objects of a process share one environment of verifiers, which keeps the state of each
    rollout apart. It is loaded by `prepare`, `tasks` or `reset`, which workers call under a time
    limit.
    """

    def __init__(
        self,
        source: str,
        *,
        kwargs: Mapping[str, Any] | None = None,
        anchor: str = "text",
        won_from: float | None = None,
        result_characters: int = 4000,
    ) -> None:
        """Checks the options.

        Args:
          source: Module with the function `load_environment`.
          kwargs: Keyword arguments of `load_environment`.
          anchor: Anchor state, "text" (the last reply) or "state" (all messages so far).
          won_from: Reward from which an episode is won; None: the environment's `pass_threshold`.
          result_characters: Largest number of characters of a reply.

        Raises:
          InputError: An option that cannot be used.
        """
        check_whole("result_characters", result_characters, 1)
        self._source = source
        self._arguments = json.dumps(dict(kwargs or {}), sort_keys=True)
        self._anchor = anchor
        self._won_from = won_from
        self._result_characters = result_characters
        self._client: Any = None
        self._rollout: Any = None
        self._request: Any = None
        self._tool_names: tuple[str, ...] = ()
        self._words = ""
        self._messages: list[str] = []
        self._result: StepResult | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """Lists a split's tasks, a row of the dataset each."""
        tasks = []
        for number, row in enumerate(self._find_rows(split)):
            name = f"{split}/{number:05d}"
            tasks.append(Task(name, "", split, str(number), str(row.get("answer", ""))))
        return tasks

    def digest(self, task: Task) -> str:
        """SHA-256 of the task's row, in hexadecimal; panels freeze it."""
        row = self._find_rows(task.split)[int(task.data)]
        return hashlib.sha256(json.dumps(row, sort_keys=True, default=str).encode()).hexdigest()

    def prepare(self) -> None:
        """Loads the environment; bad input ends the command here."""
        _load_splits(self._source, self._arguments)

    def reset(self, task: Task) -> Observation:
        from gigpo_jax.envs.verifiers.policy_client import start_rollout, wait_for_request

        self.close()
        env = _load_environment(self._source, self._arguments)
        row = self._find_rows(task.split)[int(task.data)]
        self._client, self._rollout = background.run(start_rollout(env, row))
        request = background.run(wait_for_request(self._client, self._rollout))
        if isinstance(request, dict):
            raise EnvError(f"the episode ended before the first response{_describe_end(request)}")
        self._request = request
        self._tool_names = tuple(tool.name for tool in request.tools)
        self._words = _describe_task(request)
        self._messages = []
        observation = self._observe(START)
        self._result = StepResult(observation, 0.0, False, _START_INFO)
        return observation

    def step(self, action: str) -> StepResult:
        """Gives the policy's message to the rollout."""
        return background.run(self.step_async(action))

    async def step_async(self, action: str) -> StepResult:
        """`step` while the worker plays other episodes."""
        message = self._read_action(action)
        if isinstance(message, StepResult):
            return message
        call = background.submit(self._answer(message))
        return self._finish_step(message, await asyncio.wrap_future(call))

    def close(self) -> None:
        rollout = self._rollout
        self._rollout = None
        self._result = None
        if rollout is not None:
            from gigpo_jax.envs.verifiers.policy_client import stop_rollout

            background.run(stop_rollout(rollout), _STOP_S)

    def _find_rows(self, split: str) -> list[dict[str, Any]]:
        splits = _load_splits(self._source, self._arguments)
        check_split(split, splits)
        return splits[split]

    def _read_action(self, action: str) -> Any:
        """The assistant's message, or the result without one."""
        if self._result is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if self._result.done:
            return StepResult(self._result.observation, 0.0, True, self._result.info)
        from verifiers.types import AssistantMessage
        from verifiers.types import ToolCall as CallMessage

        # Packages encode messages as UTF-8, which has no lone surrogates.
        text = action.encode("utf-8", "replace").decode("utf-8")
        if not self._tool_names:
            return AssistantMessage(content=text)
        response = parse_tagged(text, fallback_chars=len(text), keeps_case=True)
        try:
            choice = read_action(response.action, self._tool_names)
        except ActionError as err:
            repeated = self._observe(f"{err} {FORMAT}", self._result.observation.anchor)
            return StepResult(repeated, 0.0, False, _START_INFO)
        if not isinstance(choice, ToolCall):
            return AssistantMessage(content=choice.text)
        call = CallMessage(
            id=f"call_{len(self._messages)}",
            name=choice.name,
            arguments=json.dumps(choice.arguments),
        )
        return AssistantMessage(content="", tool_calls=[call])

    async def _answer(self, message: Any) -> Any:
        from gigpo_jax.envs.verifiers.policy_client import answer_request

        return await answer_request(self._client, self._rollout, self._request, message)

    def _finish_step(self, message: Any, request: Any) -> StepResult:
        """The result of a message.

        Args:
          message: Message of the policy.
          request: Next request, or the output of the rollout.
        """
        self._messages.append(str(message.content) + "".join(map(str, message.tool_calls or [])))
        if not isinstance(request, dict):
            self._request = request
            text = _join_replies(request.messages)
            self._messages.append(text)
            self._result = StepResult(self._observe(text), 0.0, False, _START_INFO)
            return self._result
        if request.get("error"):
            raise StepError(f"the environment failed{_describe_end(request)}")
        reward = float(request["reward"])
        threshold = self._won_from
        if threshold is None:
            threshold = _load_environment(self._source, self._arguments).pass_threshold
        won = reward >= threshold
        text = _join_replies(request["completion"] or []) or END
        info: dict[str, bool | float] = {"won": won, "score": float(won)}
        self._result = StepResult(self._observe(text), reward, True, info)
        return self._result

    def _observe(self, text: str, anchor: str | None = None) -> Observation:
        text = limit_text(text, self._result_characters)
        if anchor is None:
            anchor = text if self._anchor == "text" else "\n".join([START, *self._messages])
        # An empty reply is a state like others.
        return Observation(text, anchor or END, None, self._words)


@functools.cache
def _load_environment(source: str, arguments: str) -> Any:
    """Loads an environment, once in a process.

    Args:
      source: Module with `load_environment`.
      arguments: Keyword arguments as JSON.

    Raises:
      InputError: A package is missing, or the environment cannot be loaded or played here.
    """
    value = repr(f"verifiers:{source}")
    with optional_imports("verifiers", key=_NAME_KEY, value=value):
        import datasets
        import verifiers
    datasets.disable_progress_bars()
    # The package puts handlers of its own into the process, which would end a run without its
    # checkpoint.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        env = verifiers.load_environment(source, **json.loads(arguments))
    except Exception as err:  # the module is a program of others
        cause = err.__cause__ or err
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise InputError(f"cannot be loaded ({reason})", key=_NAME_KEY, value=value) from err
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if not isinstance(env, verifiers.Environment):
        raise InputError(
            f"load_environment returns a {type(env).__name__}, no verifiers.Environment",
            key=_NAME_KEY,
            value=value,
        )
    if env.requires_group_rollouts:
        raise InputError(
            "its rubric compares the rollouts of a group, and here each is scored alone",
            key=_NAME_KEY,
            value=value,
            fix="use a rubric without functions of several rollouts",
        )
    return env


@functools.cache
def _load_splits(source: str, arguments: str) -> dict[str, list[dict[str, Any]]]:
    """Loads the rows of an environment's datasets, by split."""
    env = _load_environment(source, arguments)
    splits = {"train": env.build_dataset(), "test": env.build_eval_dataset()}
    return {name: list(rows) for name, rows in splits.items() if rows is not None}


def _describe_task(request: Any) -> str:
    """The first messages and the tools as one text."""
    texts = [(message.role, _read_text(message)) for message in request.messages]
    # Examples need their roles; a system message and a question do not.
    has_examples = any(role == "assistant" for role, _ in texts)
    lines = [f"{role}: {text}" if has_examples else text for role, text in texts]
    if request.tools:
        lines.append("Tools:")
        for tool in request.tools:
            lines.append(describe_tool(tool.name, tool.description, tool.parameters))
        lines.append(FORMAT)
    return "\n".join(lines)


def _join_replies(messages: Sequence[Any]) -> str:
    """The text of the messages after the assistant's last."""
    replies: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            replies = []
        else:
            replies.append(_read_text(message))
    return "\n".join(replies)


def _read_text(message: Any) -> str:
    """A message's text, with a mark for each other content."""
    content = message["content"]
    if isinstance(content, str):
        return content
    blocks = [dict(block) for block in content or []]
    return "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in blocks)


def _describe_end(output: Mapping[str, Any]) -> str:
    """Why a rollout ended, in one line."""
    error = output.get("error")
    reason = f"{error['error']}: {error['message']}" if error else output.get("stop_condition")
    return f" ({' '.join(str(reason).split())})"
