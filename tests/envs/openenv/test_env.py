"""OpenEnv servers as ours: odd ones by hand, and the real package (make test-interfaces).

The package cannot be in .venv: it needs mcp 1, and ours is mcp 2. Our side does not need it.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import EnvError, StepError
from gigpo_jax.envs import registry
from gigpo_jax.envs.command_line import main
from tests.processes import wait_until

pytest.importorskip("aiohttp")
ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def serve(*words: str) -> Iterator[str]:
    """A server; its URL as a name of an environment."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield f"openenv:{server.stdout.readline().strip()}"
        finally:
            server.kill()


@contextlib.contextmanager
def odd(way: str, **options: Any) -> Iterator[Any]:
    """An environment of an odd server."""
    with serve(f"{ROOT}/tests/envs/openenv/odd_openenv.py", way) as name:
        env: Any = registry.make(name, **options)
        yield env
        env.close()


def test_texts_are_actions_and_seeds_are_tasks() -> None:
    with odd("plain", task="count", anchor="state") as env:
        tasks = env.tasks("test")
        observation = env.reset(tasks[1])
        assert (observation.text, observation.task) == ("reset 1000001", "count")
        first_result = env.step("left")
        assert (first_result.observation.text, first_result.reward) == ("step left", 1.0)
        assert first_result.observation.anchor != observation.anchor
        result = env.step("end")
        assert (result.done, result.info) == (True, {"won": True, "score": 1.0})


def test_discrete_actions_have_names() -> None:
    with odd("enum", actions=["west", "east"]) as env:
        assert env.reset(env.tasks("train")[0]).admissible == ("west", "east")
        assert env.step(" EAST ").observation.text == "step right"
        text = env.step("right").observation.text
        assert text == "There is no such action.\nstep right"


def test_a_dropped_connection_is_opened_again() -> None:
    with odd("drops") as env:
        for task in env.tasks("train")[:3]:
            assert env.reset(task).text == f"reset {task.data}"
            assert env.step("end").done


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("escapes", "\x1b[2J\x00 red"),
        ("huge", "y" * 4000 + " .. [4996000 characters are left out]"),
        ("refuses", "The server refuses the action: too\nlong\nreset 0"),
    ],
)
def test_an_observation_is_text_of_limited_length(way: str, text: str) -> None:
    with odd(way) as env:
        env.reset(env.tasks("train")[0])
        assert env.step("left").observation.text == text


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("dies", "the server has closed the connection"),
        ("hangs", "no answer within 3 s"),
        ("lies", "has no field 'text', only words"),
        ("odd_reward", "reward 'many'"),
        ("words", "the answer is not JSON"),
        ("raises", "the server failed: a"),
        ("too_large", "the server sent no text"),
    ],
)
def test_a_server_that_fails_costs_the_step(way: str, message: str) -> None:
    with odd(way, answer_timeout_s=3.0) as env:
        env.reset(env.tasks("train")[0])
        with pytest.raises((StepError, EnvError)) as caught:
            env.step("left")
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("way", "options", "message"),
    [
        ("hangs_at_schema", {}, "no answer within 3 s"),
        ("no_json", {}, "the answer is not JSON"),
        ("huge_schema", {}, "more than 16,777,216 bytes"),
        ("no_fields", {}, "its schema of actions names no fields"),
        ("full", {}, "the server has no free session"),
        ("plain", {"field": "go"}, "actions have the fields move"),
        ("plain", {"text": "words"}, "the observation has no field 'words'"),
        ("plain", {"tasks": "server"}, "the server lists no tasks"),
        ("enum", {"actions": ["a"]}, "has 2 discrete actions"),
    ],
)
def test_bad_input_is_one_line(way: str, options: dict[str, Any], message: str) -> None:
    with odd(way, answer_timeout_s=3.0, **options) as env:
        with pytest.raises(InputError) as caught:
            env.prepare() if "tasks" not in options else env.tasks("train")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_panel_notices_another_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "panel.json")
    with serve(f"{ROOT}/tests/envs/openenv/odd_openenv.py", "plain") as name:
        freeze = ["freeze", name, "--name", "mine", "--split", "test", "--each", "5"]
        assert main([*freeze, "--out", path]) == 0
        assert main(["check-panel", name, "--name", path]) == 0
        assert main(["check-panel", name, "--name", path, "--option", "task=count"]) == 2
        assert "the content of its task" in capsys.readouterr().err


def test_no_server_and_no_docker_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no OpenEnv server plays there"):
        registry.make("openenv:http://127.0.0.1:9").prepare()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="an image needs docker, which is not here"):
        registry.make("openenv:no-image:latest").prepare()


def test_docker_that_fails_is_one_line_and_is_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$1" >> {log}\necho "no such image" >&2\nexit 1\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InputError, match=r"the container does not start \(no such image"):
        registry.make("openenv:some-image").prepare()
    assert log.read_text().split() == ["run", "rm"]


def test_a_container_plays_and_ends_with_its_process(tmp_path: Path) -> None:
    # There is no docker in the tests; a program in its place starts the server as a process.
    docker = tmp_path / "docker"
    server = f"{sys.executable} {ROOT}/tests/envs/openenv/odd_openenv.py plain"
    docker.write_text(
        f"""#!/bin/sh
cd {tmp_path}
echo "$@" >> log
case "$1" in
run) {server} > address & echo $! > pid ;;
port) while ! [ -s address ]; do sleep 0.1; done; sed s=http://== address ;;
rm) kill -9 $(cat pid); echo removed >> log ;;
esac
"""
    )
    docker.chmod(0o755)
    program = (
        "from gigpo_jax.envs import registry; env = registry.make('openenv:some-image');"
        "env.prepare(); print(env.reset(env.tasks('test')[0]).text, flush=True); input()"
    )
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as player:
        assert player.stdout is not None
        assert player.stdout.readline() != ""
        player.kill()  # it cannot tidy up
    log = tmp_path / "log"
    assert wait_until(lambda: log.read_text().endswith("removed\n"), 30)
    run, port, removal, _ = log.read_text().splitlines()
    assert run.endswith("--publish 127.0.0.1::8000 some-image")
    name = run.split()[run.split().index("--name") + 1]
    assert (port, removal) == (f"port {name} 8000", f"rm --force {name}")


@pytest.mark.interfaces
def test_a_real_server_keeps_all_promises(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openenv.core")
    program = "import sys; from gigpo_jax.envs.command_line import main; sys.exit(main())"
    words = ["-c", program, "openenv", "example", "--split", "test", "--port", "0"]
    options = ["field=action", "text=text", "task_field=task", "admissible=admissible"]
    options += ["tasks=server", "anchor=anchor"]
    flags = [word for option in options for word in ("--option", option)]
    with serve(*words) as name:
        assert main(["check", name, "--split", "test", "--tasks", "2", *flags]) == 0
    assert capsys.readouterr().out.count("holds: ") == 6
