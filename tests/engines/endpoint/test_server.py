"""The official client of OpenAI against the real server and a real engine."""

import asyncio
import functools
import itertools
import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, EngineLost, request_key
from gigpo_jax.engines.endpoint import sampler
from gigpo_jax.engines.endpoint.server import MAX_BODY_BYTES, Endpoint
from gigpo_jax.engines.endpoint.sessions import EndpointSession
from gigpo_jax.engines.jax.jax_engine import EngineSettings
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.models.text.chat_messages import chat_text
from tests.engines.endpoint.serving import (
    DOOR,
    HEADS,
    MAX_PROMPT,
    SAMPLING,
    TOKENIZER,
    Watched,
    client,
    make_engine,
    post,
    serving,
    small_policy,
)
from tests.processes import wait_until


@pytest.fixture(scope="module")
def engine() -> Iterator[Watched]:
    with make_engine() as made:
        yield made


@pytest.fixture(scope="module")
def endpoint(engine: Watched) -> Iterator[Endpoint]:
    with serving(engine) as made:
        yield made


def test_a_chat_has_the_tokens_of_the_engine_and_the_version_of_its_weights(
    policy: openai.OpenAI, engine: Watched
):
    assert list(policy.models.list()) == [policy.models.retrieve("policy")]
    with pytest.raises(openai.NotFoundError):
        policy.models.retrieve("gpt")
    answer = policy.chat.completions.create(**HEADS, logprobs=True, seed=5)
    tokens, params, completion = engine.seen[-1]
    assert tokens == TOKENIZER.encode_chat(DOOR[0]["content"])
    assert (params.temperature, params.max_tokens) == (SAMPLING.temperature, SAMPLING.max_tokens)
    choice = answer.choices[0]
    assert choice.message.content == TOKENIZER.decode(completion.tokens.tolist())
    assert [entry.logprob for entry in choice.logprobs.content] == completion.logprobs.tolist()
    assert choice.finish_reason == completion.finish_reason
    assert answer.usage.completion_tokens == len(completion.tokens)
    assert answer.system_fingerprint == "weights-7"
    again = policy.chat.completions.create(**HEADS, seed=5)
    assert again.choices[0].message.content == choice.message.content
    greedy = [
        policy.chat.completions.create(**HEADS, temperature=0, max_tokens=3) for _ in range(2)
    ]
    assert engine.seen[-1][2].tokens.tolist() == engine.seen[-2][2].tokens.tolist()
    assert greedy[0].usage.completion_tokens <= 3


def test_several_choices_differ_and_completions_take_text_or_ids(
    policy: openai.OpenAI, engine: Watched
):
    several = policy.chat.completions.create(**HEADS, n=3)
    assert len({choice.message.content for choice in several.choices}) > 1
    told = policy.completions.create(model="policy", prompt="<bos>go north", logprobs=0, seed=1)
    ids = policy.completions.create(
        model="policy", prompt=TOKENIZER.encode("<bos>go north"), seed=1
    )
    assert engine.seen[-1][0] == engine.seen[-2][0] == TOKENIZER.encode("<bos>go north")
    assert told.choices[0].text == ids.choices[0].text
    assert told.choices[0].logprobs.token_logprobs == engine.seen[-1][2].logprobs.tolist()


def test_a_stream_says_what_the_answer_says(policy: openai.OpenAI):
    whole = policy.chat.completions.create(**HEADS, seed=3, logprobs=True)
    events = list(
        policy.chat.completions.create(
            **HEADS, seed=3, logprobs=True, stream=True, stream_options={"include_usage": True}
        )
    )
    said = [event.choices[0] for event in events if event.choices]
    assert [choice.delta.content for choice in said] == [whole.choices[0].message.content, None]
    assert [choice.finish_reason for choice in said] == [None, whole.choices[0].finish_reason]
    assert said[0].logprobs.content == whole.choices[0].logprobs.content
    assert events[-1].usage == whole.usage
    texts = policy.completions.create(model="policy", prompt="<bos>go", seed=3, stream=True)
    plain = policy.completions.create(model="policy", prompt="<bos>go", seed=3)
    assert "".join(event.choices[0].text for event in texts) == plain.choices[0].text


def test_the_text_ends_before_a_stop_of_the_request(policy: openai.OpenAI, engine: Watched):
    long = {"model": "policy", "prompt": "<bos>go", "seed": 11}
    free = policy.completions.create(**long)
    word = free.choices[0].text.split()[1]
    cut = policy.completions.create(**long, stop=[word])
    assert cut.choices[0].text == free.choices[0].text[: free.choices[0].text.index(word)]
    assert cut.choices[0].finish_reason == "stop"
    assert word in TOKENIZER.decode(
        engine.seen[-1][2].tokens.tolist()
    )  # it is part of what was sampled


def test_a_session_records_exactly_what_was_sampled_and_later_prompts_extend_it(
    session: openai.OpenAI, engine: Watched
):
    before = len(engine.seen)
    messages = list(DOOR)
    answers = []
    for turn in range(3):
        answers.append(
            session.chat.completions.create(
                model="policy",
                messages=messages,
                extra_headers={"X-Anchor-State": f"room%20{turn}"} if turn else {},
            )
        )
        messages += [
            {"role": "assistant", "content": answers[-1].choices[0].message.content},
            {"role": "user", "content": f"go on {turn}"},
        ]
    with pytest.raises(openai.BadRequestError, match="has made its 3 calls"):
        session.chat.completions.create(**HEADS)
    record = session.post("/reward", body={"reward": 2.5, "score": 0.5}, cast_to=object)
    assert (record["task"], record["won"], record["score"]) == ("a task", True, 0.5)
    assert [step["reward"] for step in record["steps"]] == [0.0, 0.0, 2.5]
    assert [step["anchor"] for step in record["steps"]] == [DOOR[0]["content"], "room 1", "room 2"]
    seen = engine.seen[before:]
    assert len(seen) == len(record["steps"]) == 3
    for step, (tokens, params, completion) in zip(record["steps"], seen, strict=True):
        assert step["prompt_tokens"] == tokens
        assert step["tokens"] == completion.tokens.tolist()
        assert step["logprobs"] == pytest.approx(completion.logprobs.tolist(), abs=1e-6)
        assert (step["version"], params.temperature) == (7, SAMPLING.temperature)
    assert len({params.key for _, params, _ in seen}) == 3
    assert len({params.session for _, params, _ in seen}) == 1
    # A random policy writes words in pieces that its tokenizer would join: the ids are kept, not
    # made from the text.
    for (tokens, _, completion), (later, _, _) in itertools.pairwise(seen):
        assert later[: len(tokens) + len(completion.tokens)] == [
            *tokens,
            *completion.tokens.tolist(),
        ]
    assert seen[2][0] != TOKENIZER.encode(chat_text(TOKENIZER, messages[:5]))
    with pytest.raises(openai.NotFoundError, match="it has ended"):
        session.post("/reward", body={"reward": 0.0}, cast_to=object)


def test_a_session_continues_in_its_slot_until_it_ends():
    settings = EngineSettings(
        slots=4,
        max_length=MAX_PROMPT + SAMPLING.max_tokens,
        prefill_rows=(4,),
        prefill_chunk=16,
        keep_responses=True,
    )
    with (
        Watched(*small_policy(), settings, tokenizer=TOKENIZER) as engine,
        serving(engine) as endpoint,
        client(f"{endpoint.url}/v1") as policy,
    ):
        opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
        messages = list(DOOR)
        read_tokens = []
        with client(opened["base_url"]) as session:
            for turn in range(3):
                answer = session.chat.completions.create(model="policy", messages=messages)
                read_tokens.append(engine.prompt_tokens - engine.reused_tokens)
                content = answer.choices[0].message.content
                messages += [
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": f"go on {turn}"},
                ]
            assert not engine._held.ended_sessions
            session.post("/reward", body={"reward": 0.0}, cast_to=object)
        assert list(engine._held.ended_sessions) == [engine.seen[0][1].session]
    pairs = itertools.pairwise(engine.seen)
    for reads, ((tokens, _, completion), (later, _, _)) in zip(
        np.diff(read_tokens), pairs, strict=True
    ):
        # The new message, and the last token of the response before it.
        assert reads == len(later) - len(tokens) - completion.tokens.size + 1


def test_a_header_names_a_session_too(policy: openai.OpenAI):
    opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
    named = policy.with_options(default_headers={"X-Session-Id": opened["id"]})
    named.chat.completions.create(**HEADS)
    policy.chat.completions.create(**HEADS)  # of no session
    assert len(named.post("/reward", body={"reward": [1]}, cast_to=object)["steps"]) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 1.0), ("top_p", 0.9), ("top_k", 5), ("seed", 1), ("n", 2)],
)
def test_calls_of_a_session_are_drawn_as_the_run_says(
    session: openai.OpenAI, field: str, value: float
):
    with pytest.raises(openai.BadRequestError) as refused:
        session.chat.completions.create(**HEADS, extra_body={field: value})
    assert refused.value.body["param"] == field
    session.chat.completions.create(
        **HEADS, temperature=SAMPLING.temperature, top_p=1, max_tokens=2, stop="door"
    )


def test_wrong_keys_paths_bodies_and_sessions_get_errors(endpoint: Endpoint):
    path = "/v1/chat/completions"
    body = json.dumps(HEADS)
    assert post(endpoint, path, body)[0] == 200
    assert post(endpoint, path, body, Authorization="Bearer other") == (
        401,
        {
            "message": "the key is missing or wrong",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        },
    )
    assert post(endpoint, path, "{")[0] == 400
    assert post(endpoint, path, "[" * 100_000)[0] == 400
    assert post(endpoint, path, "[]")[0] == 400
    assert post(endpoint, path, " " * (MAX_BODY_BYTES + 1))[0] == 413
    status, error = post(endpoint, "/v1/embeddings", body)
    assert (status, error["type"]) == (404, "invalid_request_error")
    assert (
        "/v1/embeddings: not served; served are /health, /v1/chat/completions" in error["message"]
    )
    assert "{session}" not in error["message"]
    assert (
        post(endpoint, path, body, **{"X-Session-Id": "unknown"})[1]["code"] == "session_not_found"
    )
    assert (
        post(endpoint, "/sessions/unknown/v1/reward", '{"reward": 1}')[1]["code"]
        == "session_not_found"
    )
    assert "names no session" in post(endpoint, "/v1/reward", '{"reward": 1}')[1]["message"]
    with urllib.request.urlopen(endpoint.url + "/health", timeout=60) as answer:
        assert json.loads(answer.read())["status"] == "ok"


def test_rewards_are_checked(session: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match=r"no call that could be rewarded$"):
        session.post("/reward", body={"reward": 1.0}, cast_to=object)
    with pytest.raises(openai.BadRequestError, match="frequency"):
        session.chat.completions.create(**HEADS, frequency_penalty=1.0)
    with pytest.raises(openai.BadRequestError, match=r"last call was refused \(400: .*frequency"):
        session.post("/reward", body={"reward": 1.0}, cast_to=object)
    session.chat.completions.create(**HEADS)
    for body in (
        {},
        {"reward": "1"},
        {"reward": True},
        {"reward": [1, 2]},
        {"reward": 1e9},
        {"reward": 1, "score": 2},
    ):
        with pytest.raises(openai.BadRequestError, match=r"reward|score"):
            session.post("/reward", body=body, cast_to=object)


def test_sessions_are_limited_and_abandoned_ones_collected(engine: Watched):
    ended: list[EndpointSession] = []
    with (
        serving(engine, session_timeout_s=0.5, on_end=ended.append) as endpoint,
        client(endpoint.url + "/v1") as policy,
    ):

        def open_session() -> dict:
            return policy.post("/sessions", body={"task": "a task"}, cast_to=object)

        first = open_session()
        second = open_session()
        with pytest.raises(openai.RateLimitError, match="2 sessions are open"):
            open_session()
        policy.chat.completions.create(**HEADS, extra_headers={"X-Session-Id": first["id"]})
        wait_until(lambda: len(ended) == 2, 30)
        assert {session.id: (session.abandoned, len(session.turns)) for session in ended} == {
            first["id"]: (True, 1),
            second["id"]: (True, 0),
        }
        with pytest.raises(openai.NotFoundError):
            policy.chat.completions.create(**HEADS, extra_headers={"X-Session-Id": first["id"]})
        open_session()


def test_a_record_that_cannot_be_written_is_not_lost(engine: Watched):
    """A full disk fails the reward, which may be posted again; it does not end the endpoint."""
    broken = [True]
    written = []

    def on_end(session: EndpointSession) -> None:
        if broken[0]:
            raise OSError("no space left")
        written.append(session)

    with (
        serving(engine, session_timeout_s=1.0, on_end=on_end) as endpoint,
        client(endpoint.url + "/v1") as policy,
    ):
        policy.post("/sessions", body={"task": "left alone"}, cast_to=object)
        wait_until(lambda: not endpoint._sessions, 30)
        opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
        named = {"X-Session-Id": opened["id"]}
        policy.chat.completions.create(**HEADS, extra_headers=named)
        assert post(endpoint, "/v1/reward", '{"reward": 1}', **named)[0] == 500
        broken[0] = False
        assert post(endpoint, "/v1/reward", '{"reward": 1}', **named)[0] == 200
        assert [session.id for session in written] == [opened["id"]]
        assert not endpoint.ended.done()
    assert endpoint.ended.result(5) is None


def test_the_loss_of_the_engine_is_told(engine: Watched, monkeypatch: pytest.MonkeyPatch):
    async def generate(*_: Any, **__: Any) -> Completion:
        raise EngineLost("no server is left")

    monkeypatch.setattr(engine, "generate", generate)
    with serving(engine) as endpoint:
        status, error = post(endpoint, "/v1/chat/completions", json.dumps(HEADS))
        assert (status, "no server is left" in error["message"]) == (503, True)
        with pytest.raises(EngineLost, match="no server is left"):
            endpoint.ended.result(5)


def test_without_sessions_requests_are_answered_while_an_episode_is_played(engine: Watched):
    with serving(engine, max_sessions=0) as endpoint, client(endpoint.url + "/v1") as policy:
        status, error = post(endpoint, "/v1/chat/completions", json.dumps(HEADS))
        assert (status, error["message"]) == (503, "no episode is played now; ask again later")
        key = functools.partial(request_key, 0, 0, 0, 0)
        session = endpoint.open_session(
            Task("a task", "", ""), SAMPLING, key, max_calls=1, max_prompt_tokens=MAX_PROMPT
        )
        policy.chat.completions.create(**HEADS)
        endpoint._loop.call_soon_threadsafe(time.sleep, 0.3)
        asyncio.run(endpoint.end_session(session))
        assert session.closing.is_set()  # nothing changes it afterwards
    with pytest.raises(EngineLost, match="the endpoint failed"):
        asyncio.run(endpoint.end_session(session))


def test_choices_end_with_the_one_that_fails(engine: Watched, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampler, "MAX_RUNNING", 1)
    with serving(engine) as endpoint, engine._device_lock:
        assert post(endpoint, "/v1/chat/completions", json.dumps(HEADS | {"n": 2}))[0] == 429
        assert wait_until(lambda: not endpoint._sampler.running, 5)


def test_headers_have_a_limit(endpoint: Endpoint):
    path = "/v1/chat/completions"
    body = json.dumps(HEADS)
    assert post(endpoint, path, body, **{"X-Anchor-State": "a" * 60_000})[0] == 200


def test_a_call_ends_with_its_session_and_with_the_time_limit(engine: Watched):
    """The device is held, so responses take as long as the test wants."""
    with serving(engine, request_timeout_s=2.0) as endpoint, client(endpoint.url + "/v1") as policy:
        opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
        session = endpoint._sessions[opened["id"]]
        with engine._device_lock:
            failed: list[Exception] = []

            def call() -> None:
                try:
                    policy.chat.completions.create(
                        **HEADS, extra_headers={"X-Session-Id": opened["id"]}
                    )
                except openai.APIStatusError as err:
                    failed.append(err)

            thread = threading.Thread(target=call)
            thread.start()
            wait_until(lambda: session.running > 0, 30)
            asyncio.run(endpoint.end_session(session))
            thread.join(30)
            assert [err.status_code for err in failed] == [404]
            with pytest.raises(openai.InternalServerError, match="request_timeout_s=2") as late:
                policy.chat.completions.create(**HEADS)
            assert late.value.status_code == 504
        assert session.turns == []
        policy.chat.completions.create(**HEADS)  # the engine is free again


def test_a_call_that_is_not_recorded_yet_takes_no_place_of_another(engine: Watched):
    """Its client may close it; of two that both end, only the first is recorded."""
    with serving(engine, max_calls=1) as endpoint, client(endpoint.url + "/v1") as policy:
        opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
        session = endpoint._sessions[opened["id"]]
        named = {"X-Session-Id": opened["id"]}
        path = "/v1/chat/completions"
        body = json.dumps(HEADS)
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(post(endpoint, path, body, **named)))
            for _ in range(2)
        ]
        with engine._device_lock:
            for thread in threads:
                thread.start()
            wait_until(lambda: session.running == 2, 10)
            assert found == []
        for thread in threads:
            thread.join(60)
        assert sorted(status for status, _ in found) == [200, 400]
        assert "has made its 1 calls" in dict(found)[400]["message"]
        assert len(session.turns) == 1


def test_a_failed_engine_is_an_error_of_the_server():
    engine = make_engine()
    engine.close()
    with (
        serving(engine) as endpoint,
        client(endpoint.url + "/v1") as policy,
        pytest.raises(openai.InternalServerError, match="the engine is closed"),
    ):
        policy.chat.completions.create(**HEADS)


def test_an_address_in_use_is_refused_and_close_ends_everything(engine: Watched):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        says = r"config.serve.port=\d+: .*; choose another port, or 0 for any"
        with pytest.raises(InputError, match=says), serving(engine, port=taken.getsockname()[1]):
            pass
    for host in ("a..b", "203.0.113.1"):
        says = f"config.serve.host='{re.escape(host)}', .*; choose another host, such as 127.0.0.1"
        with pytest.raises(InputError, match=says), serving(engine, host=host):
            pass
    with serving(engine) as endpoint:
        thread = endpoint._thread
    assert not thread.is_alive()
    with pytest.raises(OSError):
        urllib.request.urlopen(endpoint.url + "/health", timeout=5)
