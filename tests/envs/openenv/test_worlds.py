"""The OpenEnv server and its client, over loopback, with the real package (make
test-interfaces).
"""

import base64
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gigpo_jax.envs.registry import make_expert
from tests.envs.pages import code

openenv = pytest.importorskip("openenv.core")
pytestmark = [pytest.mark.interfaces, pytest.mark.usefixtures("world_cache")]
ROOT = Path(__file__).parents[3]


def start(*words: str) -> tuple[subprocess.Popen[str], str]:
    """A server and its URL."""
    # Not `gigpo`: these tests run where gigpo-worlds has its packages, and gigpo_jax has not.
    program = "import sys; from gigpo_jax.envs.command_line import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "openenv", *words, "--port", "0"]
    server = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    return server, server.stdout.readline().strip()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of the example environment, for two episodes at once."""
    server, url = start("example", "--split", "test", "--option", "drawers=3", "--sessions", "2")
    yield url
    server.terminate()
    server.wait(20)


def test_the_client_plays_actions_and_responses(url: str) -> None:
    from gigpo_jax.env_bridge.types import Observation
    from gigpo_jax.envs.openenv.worlds import WorldAction, WorldClient

    assert url.startswith("http://127.0.0.1:")
    with WorldClient(base_url=url).sync() as client:
        result = client.reset(task="test/0001")
        expert = make_expert("example", seed=0)
        assert (result.reward, result.done, result.observation.task) == (
            0.0,
            False,
            "find the pearl",
        )
        result = client.step(WorldAction(response="what?"))
        assert not result.observation.valid
        rewards = []
        while not result.done:
            observation = result.observation
            action = expert.act(
                Observation(
                    observation.text,
                    observation.anchor,
                    tuple(observation.admissible),
                    observation.task,
                )
            )
            result = client.step(
                WorldAction(response=f"<think>so</think><action>{action}</action>")
            )
            assert f"You did: {action}" in result.observation.prompt
            rewards.append(result.reward)
        assert (
            rewards[-1],
            sum(rewards),
            result.observation.won,
            result.observation.truncated,
        ) == (
            10,
            10,
            True,
            False,
        )
        state = client.state()
        assert (state.task_id, state.task_type, state.step_count) == (
            "test/0001",
            "find_pearl",
            len(rewards) + 1,
        )
        with pytest.raises(RuntimeError, match="after the end of an episode"):
            client.step(WorldAction(action="open drawer 1"))
        drawn = [
            client.reset(seed=5).observation.anchor and client.state().task_id for _ in range(2)
        ]
        assert drawn[0] == drawn[1]


def test_bad_input_is_an_error_and_the_session_continues(url: str) -> None:
    from gigpo_jax.envs.openenv.worlds import WorldClient

    with openenv.GenericEnvClient(base_url=url).sync() as client:
        with pytest.raises(RuntimeError, match="call reset first"):
            client.step({"action": "open drawer 1"})
        for arguments, message in (
            ({"task": "test/9"}, "test of example has no such task"),
            ({"task": 64}, "must be a whole number from 0 to 63"),
            ({"tsk": 1}, "'tsk'.* not known; give task, or seed"),
            ({"split": "train"}, "this server has test"),
        ):
            with pytest.raises(RuntimeError, match=message):
                client.reset(**arguments)
        client.reset(split="test", index=2)
        for action in ({}, {"action": "look", "response": "look"}):
            with pytest.raises(RuntimeError, match="has both or neither of action"):
                client.step(action)
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            client.step({"text": "look"})
        assert (
            client.step({"action": "open drawer 1"})
            .observation["text"]
            .startswith("You open the drawer 1.")
        )
    with WorldClient(base_url=url).sync() as first_client, WorldClient(base_url=url).sync() as two:
        assert [client.reset(task=0).observation.text for client in (first_client, two)] == [
            "You stand before 3 drawers."
        ] * 2
        with pytest.raises(Exception, match="capacity"), WorldClient(base_url=url).sync() as three:
            three.reset()


def test_the_tasks_are_listed_over_http(url: str) -> None:
    def post(path: str, **body: object) -> dict:
        request = urllib.request.Request(
            f"{url}/example/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    assert post("num_tasks", split="test") == {"num_tasks": 64}
    third = {"index": 2, "id": "test/0002", "type": "find_ring"}
    assert post("task", split="test", index=2) == {"task": third}
    assert post("task_range", split="test", start=2, stop=3)["tasks"] == [third]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post("task", split="test", index=64)


def test_pictures_are_sent_as_png() -> None:
    from gigpo_jax.envs.openenv.worlds import WorldEnvironment
    from gigpo_jax.envs.world import open_world

    environment = WorldEnvironment(open_world("numberline", panel="test"))
    (image,) = environment.reset(task=0).images
    assert base64.b64decode(image).startswith(b"\x89PNG")


def test_the_command_refuses_bad_input_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from gigpo_jax.envs.command_line import main

    for words, message in (
        (["exampel"], "name='exampel': unknown; did you mean 'example'?"),
        (["example", "--panel", "x"], "panel='x': no such file"),
        (["example", "--option", "drawers=0"], "options.drawers=0: must be a number from 1 to 99"),
        (["example", "--port", "99999"], "--port=99999: must be a whole number from 0 to 65535"),
        (["example", "--host", "256.0.0.1"], "--host=256.0.0.1 --port=8000: "),
    ):
        assert main(["openenv", *words]) == 2
        error_text = capsys.readouterr().err
        assert error_text.startswith(message)
        assert error_text.count("\n") == 1


def test_the_code_of_the_page_plays_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    server, url = start("sokoban", "--panel", "test", "--option", "observation=text")
    try:
        exec(code("OpenEnv").replace("http://127.0.0.1:8000", url), {})
    finally:
        server.send_signal(signal.SIGINT)
        error_text = server.communicate(timeout=20)[1]
    assert (server.returncode, error_text) == (0, "")
    assert capsys.readouterr().out.endswith(" True\n")


def test_no_jax_was_imported() -> None:
    assert not {"jax", "torch"} & set(sys.modules)
