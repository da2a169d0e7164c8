"""The tools of MCP servers as actions: a server with the official SDK, and odd ones by hand."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError, StepError
from gigpo_jax.envs import registry
from gigpo_jax.envs.command_line import main
from tests.processes import wait_until

pytest.importorskip("mcp")

ROOT = Path(__file__).parents[3]
CALCULATOR = f"mcp:{sys.executable} {ROOT}/examples/mcp/calculator.py"
TASKS = str(ROOT / "examples/mcp/tasks.jsonl")
SAY = '{"tool": "say", "arguments": {"text": "hello"}}'


def odd(way: str) -> str:
    return f"mcp:{sys.executable} {ROOT}/tests/envs/mcp/odd_server.py {way}"


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


def score_memory(row: dict[str, Any], answer: str, call_tool: Any) -> float:
    """The score is what the server says, not the agent."""
    return 0.5 if call_tool("recall") == answer else 0.0


@pytest.mark.slow
def test_a_server_of_the_sdk_keeps_all_promises(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--tasks", "1", "--limit", "60", "--option", f"tasks={TASKS}"]
    assert main(["check", CALCULATOR, *flags, "--option", "anchor=state"]) == 0
    assert capsys.readouterr().out.count("holds: ") == 6


def test_tools_are_called_and_the_answer_is_scored() -> None:
    env: Any = registry.make(CALCULATOR, tasks=TASKS, anchor="state")
    assert (len(env.tasks("train")), len(env.tasks("test"))) == (64, 32)
    task = env.tasks("train")[0]
    observation = env.reset(task)
    assert observation.task.startswith("What is (14 + 15) * 3?\nTools:\n- add(a: integer, b: inte")
    first_anchor = observation.anchor
    assert env.step(call("add", a=14, b=15)).observation.text == "29"
    result = env.step(call("multiply", b=3, a=29))
    assert (result.observation.text, result.reward, result.done) == ("87", 0.0, False)
    assert result.observation.anchor == env.step("what?").observation.anchor != first_anchor
    assert env.step(call("add", a="many")).observation.text.startswith("Error: ")
    result = env.step('{"answer": " 87 "}')
    assert (result.reward, result.done, result.info) == (1.0, True, {"won": True, "score": 1.0})
    env.reset(task)
    assert env.step('{"answer": "86"}').info == {"won": False, "score": 0.0}
    env.close()


def test_a_server_over_http() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    program = f"from calculator import server; server.run('streamable-http', port={port})"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT / "examples/mcp") as server:
        try:
            wait_for_port(port)
            env: Any = registry.make(f"mcp:http://127.0.0.1:{port}/mcp", tasks=TASKS)
            env.reset(env.tasks("train")[0])
            assert env.step(call("add", a=1, b=2)).observation.text == "3"
            env.close()
        finally:
            server.kill()


def wait_for_port(port: int) -> None:
    def is_open() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    assert wait_until(is_open, 60), f"nothing listens on port {port}"


@pytest.mark.parametrize("restart", [True, False])
def test_every_episode_has_a_server_of_its_own(restart: bool) -> None:
    scorer = f"{__name__}:score_memory"
    env: Any = registry.make(CALCULATOR, tasks=TASKS, scorer=scorer, restart=restart)
    task = env.tasks("test")[0]
    env.reset(task)
    env.step(call("store", number=7))
    assert env.step('{"answer": "7"}').info == {"won": False, "score": 0.5}
    env.reset(task)
    assert env.step(call("recall")).observation.text == ("0" if restart else "7")
    env.close()


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("add 1 2", "That is not JSON."),
        ("[" * 100_000, "That is not JSON."),
        (
            '{"tool": "add", "arguments": {"a": "\\ud800", "b": 2}}',
            "The arguments are nested too deeply, or are no Unicode text.",
        ),
        (
            '{"tool": "add", "arguments": {"a": %s, "b": 2}}' % ("[" * 500 + "]" * 500),
            "The arguments are nested too deeply, or are no Unicode text.",
        ),
        ("7", "That is no JSON object."),
        ('{"tool": "subtract"}', "There is no such tool."),
        ('{"tool": ["add"]}', "There is no such tool."),
        ('{"answer": 3}', "The answer is no JSON string: write it between quotes."),
        ("{}", "There is no such tool."),
        ('{"tool": "add", "arguments": [1]}', "The arguments are no JSON object."),
    ],
)
def test_an_action_that_is_no_call_gets_the_format(action: str, text: str) -> None:
    env: Any = registry.make(odd("plain"), tasks=TASKS)
    env.reset(env.tasks("train")[0])
    env._tools["add"] = env._tools["say"]
    result = env.step(action)
    assert result.observation.text.startswith(f'{text} Call a tool with {{"tool"')
    assert not result.done
    env.close()


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("plain", "hello 1"),
        ("escapes", "\x1b[2J\x00 red \x1b[31m 1"),
        ("huge", "y" * 4000 + " .. [4996002 characters are left out]"),
        ("picture", "[image]"),
        ("odd_schema", "hello 1"),
        ("lists_for_ever", "hello 1"),
    ],
)
def test_a_result_is_text_of_limited_length(way: str, text: str) -> None:
    env: Any = registry.make(odd(way), tasks=TASKS)
    observation = env.reset(env.tasks("train")[0])
    assert len(observation.task) < 1000
    assert env.step(SAY).observation.text == text
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "restart", "message"),
    [
        ("dies", True, r"Connection closed; its last line: because\x1b[2J"),
        ("dies_after_start", True, "Connection closed"),
        ("dies_after_start", False, "Connection closed"),
        ("hangs", True, "gave no answer within 2 s (step)"),
        ("lies", True, "say"),
    ],
)
def test_a_server_that_fails_costs_the_step(way: str, restart: bool, message: str) -> None:
    async def play() -> None:
        with EnvPool(
            registry.spec(odd(way)).build,
            {"tasks": TASKS, "restart": restart},
            workers=1,
            envs_per_worker=2,
            start_timeout_s=60,
            step_timeout_s=2,
        ) as pool:
            task = pool.tasks("train")[0]
            async with pool.episode() as environment:
                for _ in range(2):  # another server plays the next episode
                    await environment.reset(task)
                    with pytest.raises(StepError) as caught:
                        await environment.step(SAY)
                    assert message in str(caught.value)
                    assert "\n" not in str(caught.value)

    asyncio.run(asyncio.wait_for(play(), 120))


def test_a_server_that_starts_no_second_time_costs_the_episode(tmp_path: Path) -> None:
    async def play() -> None:
        with EnvPool(
            registry.spec(odd(f"starts_once {tmp_path}/started")).build,
            {"tasks": TASKS},
            workers=1,
            envs_per_worker=1,
            start_timeout_s=60,
        ) as pool:
            task = pool.tasks("train")[0]
            for _ in range(2):
                async with pool.episode() as environment:
                    with pytest.raises(EnvError, match="no MCP server answers there"):
                        await environment.reset(task)

    asyncio.run(asyncio.wait_for(play(), 120))


@pytest.mark.slow
def test_a_server_that_starts_at_random_is_not_replayable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--tasks", "1", "--option", f"tasks={TASKS}"]
    assert main(["check", odd("random_tool"), *flags]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("not replayable: ")


def test_a_server_that_does_not_start_in_time_stops_the_command() -> None:
    build = registry.spec(odd("hangs_at_start")).build
    with pytest.raises(EnvError, match="gave no answer within 3 s"):
        EnvPool(build, {"tasks": TASKS}, workers=1, envs_per_worker=1, start_timeout_s=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tasks", "message"),
    [
        ("mcp:", TASKS, "no command and no URL; such as 'mcp:python server.py'"),
        ("mcp:'", TASKS, "No closing quotation"),
        ("mcp:no_such_command --x", TASKS, "no MCP server answers there (FileNotFoundError"),
        ("mcp:http://127.0.0.1:9/mcp", TASKS, "no MCP server answers there ("),
        (odd("ends_at_start"), TASKS, "(MCPError: Connection closed; its last line: no\\x1b[2J)"),
        (odd("no_tools"), TASKS, "the server has no tools"),
        (odd("plain"), "", "--option tasks: not given; name a JSONL file"),
        (odd("plain"), "/no/such/file", "No such file"),
        (odd("plain"), "words", "line 1 is not JSON"),
        (odd("plain"), '{"task": "t"}', "line 1 has no task and answer"),
        (odd("plain"), '{"id": "a", "task": "t", "answer": "1"}\n' * 2, "line 2 repeats the id"),
        (odd("plain"), "\n", "no tasks"),
        (odd("plain"), '{"split": "dev", "task": "t", "answer": "1"}', "has the splits dev"),
    ],
)
def test_bad_input_is_one_line(
    name: str, tasks: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if tasks and not tasks.startswith("/"):
        path = tmp_path / "tasks.jsonl"
        path.write_text(tasks)
        tasks = str(path)
    assert main(["check", name, "--option", f"tasks={tasks}"]) == 2
    error_text = capsys.readouterr().err
    lines = [line for line in error_text.splitlines() if message in line]
    assert len(lines) == 1, error_text


def test_a_scorer_that_does_not_exist_is_named() -> None:
    with pytest.raises(InputError, match=r"scorer: cannot load math:no_such"):
        registry.make(odd("plain"), tasks=TASKS, scorer="math:no_such")
