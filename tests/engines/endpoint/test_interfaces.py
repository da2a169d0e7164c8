"""/v1/messages and /v1/responses over plain HTTP: the tokens, texts and records of chats."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gigpo_jax.engines.endpoint.server import Endpoint
from gigpo_jax.models.text.chat_messages import chat_text
from tests.engines.endpoint import bigram
from tests.engines.endpoint.serving import KEY, Watched, make_engine, serving
from tests.engines.endpoint.test_tools import LOOK, ROOM, SAMPLING, TABLE, WORDS

PARAMETERS = LOOK["function"]["parameters"]
ANTHROPIC_TOOL = {"name": "look", "input_schema": PARAMETERS}
OPENAI_TOOL = {"type": "function", "name": "look", "parameters": PARAMETERS}
MESSAGES = {"model": "policy", "max_tokens": 60, "messages": ROOM, "tools": [ANTHROPIC_TOOL]}
RESPONSES = {"model": "policy", "input": "a room.", "tools": [OPENAI_TOOL]}


@pytest.fixture(scope="module")
def engine() -> Iterator[Watched]:
    with make_engine(bigram.policy(TABLE, WORDS), WORDS, 1100) as made:
        yield made


@pytest.fixture(scope="module")
def endpoint(engine: Watched) -> Iterator[Endpoint]:
    with serving(engine, WORDS, sampling=SAMPLING, max_prompt_tokens=1000) as made:
        yield made


def send(url: str, body: dict, **headers: str) -> Any:
    """The JSON of an answer, or the events of a stream."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"X-Api-Key": KEY} | headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as err:
        return {"status": err.code} | json.loads(err.read())
    if not body.get("stream"):
        return json.loads(text)
    events = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        content = json.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        events.append(content)
    return events


def sampled_text(engine: Watched) -> str:
    return WORDS.decode(engine.seen[-1][2].tokens.tolist())


def open_session(policy: openai.OpenAI) -> str:
    return policy.post("/sessions", body={"task": "a task"}, cast_to=object)["base_url"]


def finish(url: str) -> dict:
    return send(f"{url}/reward", {"reward": 1.0})


def test_messages_have_the_prompt_of_a_chat_and_its_calls(endpoint: Endpoint, engine: Watched):
    answer = send(f"{endpoint.url}/v1/messages", MESSAGES)
    tokens, _, completion = engine.seen[-1]
    assert tokens == WORDS.encode(chat_text(WORDS, ROOM, [LOOK]))
    text = sampled_text(engine)
    texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
    assert texts == (["i look."] if text.startswith("i look.") else [])
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert [call["input"]["at"] in text for call in calls] == [True] * text.count("<tool_call>")
    assert (answer["stop_reason"], answer["role"]) == ("tool_use", "assistant")
    assert answer["usage"]["input_tokens"] == len(tokens)
    assert answer["usage"]["output_tokens"] == len(completion.tokens)


def test_messages_name_the_reason_of_their_end(endpoint: Endpoint, engine: Watched):
    url = f"{endpoint.url}/v1/messages"
    plain = {key: value for key, value in MESSAGES.items() if key != "tools"}
    answer = send(url, plain)
    assert answer["content"][0]["text"] == sampled_text(engine)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    answer = send(url, plain | {"stop_sequences": ["never", "<tool_call>"]})
    assert sampled_text(engine).startswith(
        "".join(block["text"] for block in answer["content"]) + "<tool_call>"
    )
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "<tool_call>")
    assert send(url, plain | {"max_tokens": 1})["stop_reason"] == "max_tokens"


def test_messages_of_a_session_extend_its_tokens(policy: openai.OpenAI, engine: Watched):
    url = open_session(policy)
    messages: list[dict] = list(ROOM)
    system = [{"type": "text", "text": "be quick.", "cache_control": {"type": "ephemeral"}}]
    before = len(engine.seen)
    for turn in range(3):
        answer = send(f"{url}/messages", MESSAGES | {"messages": messages, "system": system})
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        text = [{"type": "text", "text": f"nothing {turn}"}]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": text} for call in calls
        ]
        messages += [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": results},
        ]
    assert "be quick." in WORDS.decode(engine.seen[before][0])
    for (tokens, _, completion), (later, _, _) in zip(
        engine.seen[before:], engine.seen[before + 1 :], strict=False
    ):
        read = [*tokens, *completion.tokens.tolist()]
        assert later[: len(read)] == read
    record = finish(url)
    assert [step["anchor"] for step in record["steps"]] == ["a room.", "nothing 0", "nothing 1"]


@pytest.mark.parametrize("tools", [True, False])
def test_a_stream_of_messages_has_the_response(policy: openai.OpenAI, engine: Watched, tools: bool):
    url = open_session(policy)
    body = MESSAGES if tools else {**MESSAGES, "tools": []}
    events = send(f"{url}/messages", body | {"stream": True})
    finish(url)
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    blocks: list[dict] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            block = blocks[event["index"]]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            else:
                block["input"] = json.loads(delta["partial_json"])
    assert kinds.count("content_block_stop") == len(blocks)
    text = sampled_text(engine)
    if tools:
        things = [block["input"]["at"] for block in blocks if block["type"] == "tool_use"]
        assert things == re.findall("door|key", text)
    else:
        assert [block["text"] for block in blocks] == [text]
    assert events[-2]["delta"]["stop_reason"] == ("tool_use" if tools else "end_turn")
    assert events[-2]["usage"]["output_tokens"] == len(engine.seen[-1][2].tokens)


def test_responses_have_the_prompt_of_a_chat_and_its_calls(endpoint: Endpoint, engine: Watched):
    body = RESPONSES | {"instructions": "be quick.", "include": ["message.output_text.logprobs"]}
    answer = send(f"{endpoint.url}/v1/responses", body)
    tokens, _, completion = engine.seen[-1]
    chat = [{"role": "system", "content": "be quick."}, *ROOM]
    assert tokens == WORDS.encode(chat_text(WORDS, chat, [LOOK]))
    text = sampled_text(engine)
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    assert [json.loads(call["arguments"])["at"] in text for call in calls] == [True] * text.count(
        "<tool_call>"
    )
    assert answer["status"] == "completed"
    assert answer["usage"]["total_tokens"] == len(tokens) + len(completion.tokens)
    plain = send(f"{endpoint.url}/v1/responses", {**body, "tools": []})
    (part,) = plain["output"][0]["content"]
    values = engine.seen[-1][2].logprobs.tolist()
    assert (part["text"], [row["logprob"] for row in part["logprobs"]]) == (
        sampled_text(engine),
        values,
    )
    short = send(f"{endpoint.url}/v1/responses", body | {"max_output_tokens": 1})
    assert (short["status"], short["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )


@pytest.mark.parametrize("stored", [True, False])
def test_responses_of_a_session_extend_its_tokens(
    policy: openai.OpenAI, engine: Watched, stored: bool
):
    url = open_session(policy)
    items: list[dict] = [{"role": "user", "content": [{"type": "input_text", "text": "a room."}]}]
    before = len(engine.seen)
    previous = None
    for turn in range(3):
        body = RESPONSES | {"input": items, "previous_response_id": previous}
        answer = send(f"{url}/responses", body)
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": f"no {turn}"}
            for call in calls
        ]
        if stored:
            previous, items = answer["id"], results
        else:
            items = [*items, *answer["output"], *results]
    for (tokens, _, completion), (later, _, _) in zip(
        engine.seen[before:], engine.seen[before + 1 :], strict=False
    ):
        read = [*tokens, *completion.tokens.tolist()]
        assert later[: len(read)] == read
    assert [step["anchor"] for step in finish(url)["steps"]] == ["a room.", "no 0", "no 1"]


@pytest.mark.parametrize("tools", [True, False])
def test_a_stream_of_responses_has_the_answer(policy: openai.OpenAI, tools: bool):
    url = open_session(policy)
    body = RESPONSES if tools else {**RESPONSES, "tools": []}
    events = send(f"{url}/responses", body | {"stream": True})
    finish(url)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    output = events[-1]["response"]["output"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert text == "".join(i["content"][0]["text"] for i in output if i["type"] == "message")
    arguments = [e["delta"] for e in events if e["type"].endswith("arguments.delta")]
    assert arguments == [i["arguments"] for i in output if i["type"] == "function_call"]
    assert bool(arguments) == tools


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("messages", {"messages": "x"}, "messages: must be a list"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
        ("messages", {"tools": [{"type": "web_search", "name": "w"}]}, "tools[0]"),
        ("messages", {"tool_choice": {"type": "any"}}, "tool_choice: not supported"),
        ("messages", {"max_tokens": 61}, "max_tokens=61"),
        ("messages", {"model": "claude"}, "this endpoint has 'policy'"),
        ("responses", {"input": 3}, "input: must be a text"),
        ("responses", {"input": [{"type": "item_reference"}]}, "'item_reference'"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools[0]"),
        ("responses", {"previous_response_id": "resp_x"}, "no such response"),
        ("responses", {"background": True}, "background: not supported"),
        ("responses", {"text": {"format": {"type": "json_schema"}}}, "not supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused(endpoint: Endpoint, path: str, body: dict, says: str):
    default = MESSAGES if path == "messages" else RESPONSES
    error = send(f"{endpoint.url}/v1/{path}", default | body)
    assert says in error["error"]["message"], error
    assert error["status"] in (400, 404)
    if path == "messages":
        assert error["type"] == "error"


def test_tokens_are_counted_and_the_key_is_checked(endpoint: Endpoint, engine: Watched):
    before = len(engine.seen)
    answer = send(f"{endpoint.url}/v1/messages/count_tokens", MESSAGES)
    assert answer == {"input_tokens": len(WORDS.encode(chat_text(WORDS, ROOM, [LOOK])))}
    assert len(engine.seen) == before
    refused = send(f"{endpoint.url}/v1/messages", MESSAGES, **{"X-Api-Key": "guess"})
    assert (refused["status"], refused["error"]["type"]) == (401, "authentication_error")


def test_limits_and_temperatures_are_clamped_and_reported_once(
    engine: Watched, caplog: pytest.LogCaptureFixture
):
    wishes = {"model": "claude", "max_tokens": 32_000, "temperature": 0.3, "top_p": 0.9}
    with serving(engine, WORDS, sampling=SAMPLING, max_prompt_tokens=1000, clamp=True) as endpoint:
        url = send(f"{endpoint.url}/v1/sessions", {"task": "a task"})["base_url"]
        for path, body in [
            ("messages", MESSAGES | wishes | {"tool_choice": {"type": "any"}}),
            ("responses", RESPONSES | {"temperature": 0.3, "max_output_tokens": -1}),
            ("chat/completions", {"messages": ROOM, **wishes, "presence_penalty": 1.0, "seed": 3}),
        ]:
            assert "status" not in send(f"{url}/{path}", body) or path == "responses"
            _, params, _ = engine.seen[-1]
            assert (params.max_tokens, params.temperature, params.top_p) == (60, 1.0, 1.0)
        assert len(finish(url)["steps"]) == 3
        send(f"{endpoint.url}/v1/messages", MESSAGES | wishes)
        # No session: what the engine can do is honoured.
        assert engine.seen[-1][1].temperature == 0.3
    for name in ("model", "max_tokens", "temperature", "top_p", "tool_choice", "presence_penalty"):
        assert caplog.text.count(f"a request has {name}=") == 1, name
