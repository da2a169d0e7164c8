"""The verifiers environments, with the real package and its client for chat completions (make
test-interfaces).
"""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.envs.pages import code

vf = pytest.importorskip("verifiers")
pytestmark = [pytest.mark.interfaces, pytest.mark.usefixtures("world_cache")]
ENTRY = "gigpo_jax.envs.verifiers.worlds"


def answer(prompt: str) -> str:
    """Opens one drawer after the other until there is something to take; the first response keeps
    to no format.
    """
    steps = int((re.search(r"Steps taken so far: (\d+)", prompt) or [0, 0])[1])
    listed = re.findall(r"^- (.*)$", prompt, re.MULTILINE)
    action = next((action for action in listed if action.startswith(("take", "close"))), None)
    action = (
        listed[-1]
        if action and listed[-1].startswith("take")
        else action or f"open drawer {steps // 2 + 1}"
    )
    return f"<think>so</think><action>{action}</action>" if steps else action


class Handler(BaseHTTPRequestHandler):
    """Chat completions of `answer`."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)  # type: ignore[attr-defined]
        text = (
            answer(request["messages"][-1]["content"])
            if len(request["messages"]) == 1
            else "too many messages"
        )
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
        }
        body = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
        }
        body["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def played(env: Any, server: Any, **arguments: Any) -> dict[str, Any]:
    client = vf.ClientConfig(
        api_base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="NO_KEY"
    )
    return env.evaluate_sync(client, "m", state_columns=["trajectory"], max_retries=0, **arguments)


def test_rollouts_are_scored_by_the_environments_rewards(server: Any) -> None:
    env = vf.load_environment(ENTRY, name="example", split="test", drawers=3)
    results = played(env, server, num_examples=2, rollouts_per_example=2)
    outputs = results["outputs"]
    assert len(outputs) == 4
    for output in outputs:
        turns = output["trajectory"]
        assert [turn["reward"] for turn in turns] == [0.0] * (len(turns) - 1) + [10.0]
        assert output["reward"] == pytest.approx(10.0 - 0.1)
        metrics = {
            "episode_reward": 10.0,
            "won": 1.0,
            "score": 1.0,
            "invalid_responses": 1.0,
            "num_turns": len(turns),
        }
        assert output["metrics"] == metrics
        assert turns[0]["extras"]["anchor"] == "You stand before 3 drawers."
        assert turns[0]["extras"]["valid"] is False
        roles = [message["role"] for message in output["completion"]]
        assert roles == ["assistant", "user"] * len(turns)
    assert any(
        "Your last 2 steps" in request["messages"][0]["content"] for request in server.requests
    )


def test_the_dataset_is_the_panel_with_the_first_prompts() -> None:
    env = vf.load_environment(ENTRY, name="search", panel="tiny_test", eval_panel="test")
    row = env.get_dataset()[0]
    assert (len(env.get_dataset()), len(env.get_eval_dataset())) == (128, 600)
    info = {"tasks": "tiny_test", "task_id": "one_hop/00000", "task_type": "one_hop"}
    assert row["info"] == {"dataset": "dataset", **info}
    assert "Question: " in row["prompt"][0]["content"]
    assert row["answer"]


def test_a_panel_and_a_split_of_the_same_name_are_two_datasets() -> None:
    env = vf.load_environment(
        ENTRY, name="sokoban", observation="text", split="test", eval_panel="test"
    )
    eval_ids = {row["info"]["task_id"] for row in env.get_eval_dataset()}
    train_rows = (row for row in env.get_dataset() if row["info"]["task_id"] not in eval_ids)
    for row in (next(train_rows), env.get_eval_dataset()[0]):
        state = asyncio.run(env.setup_state(vf.State(info=row["info"])))
        assert state["prompt"][0].content == row["prompt"][0]["content"]
        state["player"].close()


def test_an_environment_that_fails_at_its_start_costs_one_rollout(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gigpo_jax.env_bridge.types import EnvError
    from gigpo_jax.envs.example.env import TreasureEnv

    env = vf.load_environment(ENTRY, name="example", split="test")
    assert len(env.get_eval_dataset()) == 64

    def fails(self: TreasureEnv, task: Any) -> None:
        raise EnvError("the retriever is down")

    closed: list[TreasureEnv] = []
    monkeypatch.setattr(TreasureEnv, "reset", fails)
    monkeypatch.setattr(TreasureEnv, "close", lambda env: closed.append(env))
    (output,) = played(env, server, num_examples=1)["outputs"]
    assert "the retriever is down" in str(output["error"])
    assert len(closed) == 1


def test_an_episode_that_is_not_won_plays_its_last_action(server: Any) -> None:
    env = vf.load_environment(
        ENTRY, name="sokoban", panel="test", observation="text", max_steps=3, invalid_penalty=1.0
    )
    (output,) = played(env, server, num_examples=1)["outputs"]
    assert [turn["reward"] is None for turn in output["trajectory"]] == [False] * 3
    assert output["reward"] == pytest.approx(
        sum(turn["reward"] for turn in output["trajectory"]) - output["invalid_responses"]
    )
    assert (output["won"], output["stop_condition"]) == (0.0, "has_final_env_response")


def test_a_picture_stands_where_the_prompt_has_its_mark() -> None:
    from gigpo_jax.envs.verifiers.worlds import make_messages
    from gigpo_jax.envs.world import open_world

    world = open_world("sokoban", panel="test")
    ((message,), step) = (lambda step: (make_messages(step), step))(
        world.play().reset(world.tasks[0])
    )
    first_text, image, second_text = message.content
    assert image.image_url.url.startswith("data:image/png;base64,iVBOR")
    assert f"{first_text.text}<image>{second_text.text}" == step.prompt


def test_gigpo_worlds_is_an_environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "worlds"))
    assert (
        len(vf.load_environment("gigpo-worlds", name="example", split="train").get_dataset()) == 64
    )


def test_bad_input_is_refused() -> None:
    for arguments, message in (
        ({"name": "exampel"}, "did you mean 'example'"),
        ({"name": "sokoban", "panel": "x"}, "no panel of sokoban"),
        ({"name": "sokoban", "sise": 1}, "nearest: size"),
    ):
        with pytest.raises(RuntimeError, match=message):
            vf.load_environment(ENTRY, **arguments)


def test_the_code_of_the_page_plays_an_episode(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    exec(code("verifiers").replace("http://127.0.0.1:8000/v1", url), {})
    assert capsys.readouterr().out.startswith("9.9 ")
