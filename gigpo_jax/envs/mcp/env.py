"""The tools of an MCP server as a text environment (docs/mcp.md).

Tasks come from a file. An action is a call of a tool in JSON, or the answer, which ends the
episode:

    {"tool": "add", "arguments": {"a": 1, "b": 2}}
    {"answer": "3"}
"""

import asyncio
import contextlib
import hashlib
import json
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.core.references import load_reference
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.paths import expand_path
from gigpo_jax.env_bridge.types import EnvError, Observation, StepError, StepResult, Task
from gigpo_jax.envs import background
from gigpo_jax.envs.mcp.log_tail import LogTail
from gigpo_jax.envs.tool_calls import (
    FORMAT,
    ActionError,
    ToolCall,
    describe_tool,
    limit_text,
    read_action,
)

START = "You have not called a tool yet."
_NAME_KEY = "config.env.name"
_START_INFO: dict[str, bool | float] = {"won": False, "score": 0.0}

# The row of the task file, the answer, and a function that calls a tool -> score from 0 to 1.
Scorer = Callable[[dict[str, Any], str, Callable[..., str]], float]


def match_answer(row: dict[str, Any], answer: str, call_tool: Callable[..., str]) -> float:
    """A `Scorer`: 1 for the answer of the task file, in any case and with any space around it."""
    return float(answer.strip().lower() == str(row["answer"]).strip().lower())


class McpEnv:
    """A `TextEnv` of an MCP server, with a new connection for every episode.

    A command is started anew for it. With `restart=False` all episodes share one connection.
    """

    def __init__(
        self,
        source: str,
        *,
        tasks: str | os.PathLike = "",
        scorer: str = "",
        anchor: str = "text",
        restart: bool = True,
        result_characters: int = 4000,
    ) -> None:
        """Reads the tasks; the server is not started yet.

        Args:
          source: Command of a server on standard input and output, or URL of one over HTTP.
          tasks: Path of a JSONL file.
          scorer: Reference "module:NAME" of a `Scorer`; "": `match_answer`.
          anchor: Anchor state, "text" (the last result) or "state" (all calls so far).
          restart: Whether the server is started for every episode; False for one without state.
          result_characters: Largest number of characters of a result.

        Raises:
          InputError: A missing package, a bad file or an option that cannot be used.
        """
        check_whole("result_characters", result_characters, 1)
        self._source = source
        self._server = _parse_server(source)
        self._rows = _read_rows(tasks, needs_answer=not scorer)
        self._score: Scorer = load_reference(scorer, key="scorer") if scorer else match_answer
        self._anchor = anchor
        self._restart = restart
        self._result_characters = result_characters
        self._resources = contextlib.ExitStack()
        self._portal: Any = None
        self._client: Any = None
        self._log: LogTail | None = None  # of a command
        self._tools: dict[str, Any] = {}
        self._row: dict[str, Any] = {}
        self._words = ""
        self._calls: list[str] = []
        self._result: StepResult | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """Lists a split's tasks in the file's order."""
        tasks = []
        for name, row in self._rows.items():
            if row["split"] == split:
                answer = str(row.get("answer", ""))
                tasks.append(Task(name, str(row.get("type", "")), split, answer=answer))
        if not tasks:
            splits = sorted({row["split"] for row in self._rows.values()})
            raise InputError(
                f"the task file has the splits {', '.join(splits)}",
                key="config.env.split",
                value=repr(split),
            )
        return tasks

    def digest(self, task: Task) -> str:
        """SHA-256 of the task's row, in hexadecimal; panels freeze it."""
        text = json.dumps(self._rows[task.id], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def prepare(self) -> None:
        """Starts one episode; bad input ends the command here."""
        name, row = next(iter(self._rows.items()))
        self.reset(Task(name, "", row["split"]))

    def reset(self, task: Task) -> Observation:
        if self._restart:
            self.close()
        self._row = self._rows[task.id]
        if self._client is None:
            self._connect()
        tools = "\n".join(_describe_tool(tool) for tool in self._tools.values())
        self._words = f"{self._row['task']}\nTools:\n{tools}\n{FORMAT}"
        self._calls = []
        observation = self._observe(START)
        self._result = StepResult(observation, 0.0, False, _START_INFO)
        return observation

    def step(self, action: str) -> StepResult:
        """Calls a tool or scores the answer."""
        return background.run(self.step_async(action))

    async def step_async(self, action: str) -> StepResult:
        """`step` while the worker plays other episodes."""
        choice = self._read_action(action)
        if isinstance(choice, StepResult):
            return choice
        call = self._portal.start_task_soon(self._send_call, choice.name, choice.arguments)
        return self._finish_call(choice, await asyncio.wrap_future(call))

    def close(self) -> None:
        resources = self._resources
        self._resources = contextlib.ExitStack()
        self._client = None
        self._result = None
        resources.close()

    def _connect(self) -> None:
        """Connects to the server and lists its tools; raises InputError."""
        with optional_imports("mcp", key=_NAME_KEY, value=repr(f"mcp:{self._source}")):
            import mcp
            from anyio.from_thread import start_blocking_portal
            from mcp.client.stdio import stdio_client
        server: Any = self._server
        log: LogTail | None = None
        if not isinstance(server, str):
            parameters = mcp.StdioServerParameters(command=server[0], args=server[1:])
            log = LogTail()
            server = stdio_client(parameters, errlog=log.sink)
        self._log = log
        try:
            # The client runs in a thread with an event loop of its own.
            self._portal = self._resources.enter_context(start_blocking_portal())
            connection = self._portal.wrap_async_context_manager(mcp.Client(server))
            self._client = self._resources.enter_context(connection)
            self._tools = self._portal.call(self._list_tools)
        except Exception as err:  # the SDK raises groups of its own, of anyio and of httpx
            self.close()
            raise InputError(
                f"no MCP server answers there ({_describe_error(err)}{self._quote_log()})",
                key=_NAME_KEY,
                value=repr(f"mcp:{self._source}"),
            ) from err
        finally:
            if log is not None:
                log.close()  # the server has it
        if not self._tools:
            self.close()
            raise InputError(
                "the server has no tools", key=_NAME_KEY, value=repr(f"mcp:{self._source}")
            )

    def _quote_log(self) -> str:
        """The last line of a server that ended."""
        if self._log is None:
            return ""
        self._log.close()
        return self._log.quote()

    async def _list_tools(self) -> dict[str, Any]:
        tools: dict[str, Any] = {}
        cursor = None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            count = len(tools)
            tools |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor
            # A page without a new tool: the server would list for ever.
            if cursor is None or len(tools) == count:
                return tools

    def _read_action(self, action: str) -> "ToolCall | StepResult":
        """Reads a call, or gives the result without one."""
        if self._result is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if self._result.done:
            return StepResult(self._result.observation, 0.0, True, self._result.info)
        try:
            choice = read_action(action, self._tools)
        except ActionError as err:
            return self._refuse(str(err))
        return choice if isinstance(choice, ToolCall) else self._score_answer(choice.text)

    def _refuse(self, reason: str) -> StepResult:
        """The result of an action without effect."""
        assert self._result is not None
        observation = self._observe(f"{reason} {FORMAT}", self._result.observation.anchor)
        return StepResult(observation, 0.0, False, _START_INFO)

    def _score_answer(self, answer: str) -> StepResult:
        score = float(self._score(self._row, answer, self._call_tool))
        info: dict[str, bool | float] = {"won": score == 1.0, "score": score}
        self._result = StepResult(self._observe("The task is over."), score, True, info)
        return self._result

    def _call_tool(self, name: str, /, **arguments: Any) -> str:
        """Calls a tool for its text; scorers get this."""
        return str(self._portal.call(self._send_call, name, arguments))

    async def _send_call(self, name: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        try:
            result = await self._client.call_tool(name, arguments)
        except MCPError as err:
            if err.code == CONNECTION_CLOSED:
                raise StepError(f"{err}{self._quote_log()}") from err
            return f"Error: {err}"
        blocks = [getattr(block, "text", f"[{block.type}]") for block in result.content]
        text = "\n".join(blocks) or "(no text)"
        return f"Error: {text}" if result.is_error else text

    def _finish_call(self, call: ToolCall, text: str) -> StepResult:
        text = limit_text(text, self._result_characters)
        self._calls.append(f"{call.name} {json.dumps(call.arguments, sort_keys=True)}")
        self._result = StepResult(self._observe(text), 0.0, False, _START_INFO)
        return self._result

    def _observe(self, text: str, anchor: str | None = None) -> Observation:
        if anchor is None:
            anchor = text if self._anchor == "text" else "\n".join([START, *self._calls])
        return Observation(text, anchor, None, self._words)


def _parse_server(source: str) -> str | list[str]:
    """The URL, or the words of the command."""
    if source.startswith(("http://", "https://")):
        return source
    try:
        words = shlex.split(source)
    except ValueError as err:
        raise InputError(str(err), key=_NAME_KEY, value=repr(f"mcp:{source}")) from err
    if not words:
        raise InputError(
            "no command and no URL",
            key=_NAME_KEY,
            value=repr(f"mcp:{source}"),
            fix="such as 'mcp:python server.py'",
        )
    return words


def _read_rows(path: str | os.PathLike, *, needs_answer: bool) -> dict[str, dict[str, Any]]:
    """Reads the task file: rows with `split`, by id.

    Raises:
      InputError: There is no such file, or a line is no task.
    """
    key = "tasks"
    if not path:
        raise InputError("not given", key=key, fix="name a JSONL file with a task in every line")
    file = expand_path(key, path)
    try:
        # Not `splitlines`, which also splits at U+2028 inside of a text.
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as err:
        raise InputError(f"cannot read it ({err})", key=key, value=str(path)) from err
    rows: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as err:
            raise InputError(f"line {number} is not JSON", key=key, value=str(path)) from err
        fields = ["task", "answer"] if needs_answer else ["task"]
        if not isinstance(row, dict) or not all(field in row for field in fields):
            raise InputError(
                f"line {number} has no {' and '.join(fields)}", key=key, value=str(path)
            )
        split = str(row.get("split", "train"))
        name = str(row.get("id", f"{split}/{number:05d}"))
        if name in rows:
            raise InputError(f"line {number} repeats the id {name!r}", key=key, value=str(path))
        rows[name] = {**row, "split": split}
    if not rows:
        raise InputError("no tasks", key=key, value=str(path))
    return rows


def _describe_tool(tool: Any) -> str:
    return describe_tool(tool.name, tool.description or "", tool.input_schema)


def _describe_error(err: BaseException) -> str:
    """The first error of a group, in one line."""
    while isinstance(err, BaseExceptionGroup):
        err = err.exceptions[0]
    return " ".join(f"{type(err).__name__}: {err}".split())
