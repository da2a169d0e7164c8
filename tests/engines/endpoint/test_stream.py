"""Streams show text while it is sampled, and change nothing of what is sampled and recorded."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.endpoint.server import Endpoint
from tests.engines.endpoint import bigram
from tests.engines.endpoint.serving import Watched, client, make_engine, serving
from tests.processes import wait_until

# Parts of stops, of characters and of calls in random order.
PIECES = [
    "a",
    "b",
    "ab",
    "c",
    " ",
    "\n",
    "<0xC3>",
    "<0xA9>",
    "<",
    "<tool",
    "<tool_call>",
    "</tool_call>",
]
PIECES += ['{"name": "go", ', '"arguments": {}}', '"parameters": {}}', bigram.END]
LIKELY = {
    bigram.REPLY: ['{"name": "go", ', "ab", "<0xC3>"],
    "ab": ["c", "<tool_call>"],
    "<0xC3>": ["<0xA9>"],
    "<0xA9>": [" "],
    "<tool_call>": ['{"name": "go", '],
    '{"name": "go", ': ['"arguments": {}}', '"parameters": {}}'],
    '"arguments": {}}': ["</tool_call>"],
    '"parameters": {}}': [bigram.END],
}


def walk() -> dict[str, dict[str, float]]:
    """Random words, which come together to what is looked for more often than by chance."""
    draw = np.random.default_rng(0)
    rows = {}
    for last in (bigram.REPLY, *PIECES):
        chances = draw.dirichlet(np.ones(len(PIECES))) * (0.3 if last in LIKELY else 1.0)
        rows[last] = dict(zip(PIECES, chances, strict=True))
        for piece in LIKELY.get(last, ()):
            rows[last][piece] += 0.7 / len(LIKELY[last])
    return rows


TABLE = walk()
WORDS = bigram.tokenizer(TABLE)
SAMPLING = SamplingParams(temperature=1.0, max_tokens=60, stop_token_ids=WORDS.stop_token_ids)
ASKED = {"model": "policy", "messages": [{"role": "user", "content": "go"}]}
GO = {
    "type": "function",
    "function": {"name": "go", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Watched]:
    with make_engine(bigram.policy(TABLE, WORDS), WORDS, 300, decode_steps=2) as made:
        yield made


@pytest.fixture(scope="module")
def endpoint(engine: Watched) -> Iterator[Endpoint]:
    with serving(engine, WORDS, sampling=SAMPLING, max_prompt_tokens=200) as made:
        yield made


@pytest.fixture
def slow(engine: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens take at least 0.2 s."""
    advance = engine._decode

    def slowly(target: int) -> Any:
        time.sleep(0.2)
        return advance(target)

    monkeypatch.setattr(engine, "_decode", slowly)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"stop": ["abc", "b\n", "é "]},
        {"tools": [GO]},
        {"tools": [GO], "stop": ["</tool_call>", " c"]},
    ],
    ids=["plain", "stop", "tools", "tools and stop"],
)
def test_a_stream_never_shows_what_the_answer_does_not_have(
    policy: openai.OpenAI, engine: Watched, body: dict
):
    for seed in range(3):
        asked = ASKED | body | {"n": 16, "seed": seed, "max_tokens": 30}
        whole = {choice.index: choice for choice in policy.chat.completions.create(**asked).choices}
        before = {repr((params.key, completion)) for _, params, completion in engine.seen[-16:]}
        shown: dict[int, list[Any]] = {index: [] for index in whole}
        for event in policy.chat.completions.create(**asked, stream=True):
            shown[event.choices[0].index].append(event.choices[0])
        assert {
            repr((params.key, completion)) for _, params, completion in engine.seen[-16:]
        } == before
        for index, choice in whole.items():
            events = shown[index]
            assert "".join(event.delta.content or "" for event in events) == (
                choice.message.content or ""
            )
            calls = [call.function for event in events for call in event.delta.tool_calls or ()]
            assert [(call.name, call.arguments) for call in calls] == [
                (call.function.name, call.function.arguments)
                for call in choice.message.tool_calls or ()
            ]
            assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + [
                choice.finish_reason
            ]
            assert [event.delta.role for event in events] == ["assistant"] + [None] * (
                len(events) - 1
            )


def test_a_stream_has_an_event_for_each_device_call(
    slow: None, policy: openai.OpenAI, engine: Watched
):
    before = len(engine.seen)
    seen = []
    asked = {"model": "policy", "prompt": "a", "seed": 9, "max_tokens": 6}
    for event in policy.completions.create(**asked, stream=True):
        seen.append((event.choices[0].text, len(engine.seen) - before))
    one, *more = engine.seen[-1][2].tokens.tolist()
    # The first token, two times two of them, the last one, and the end.
    assert [text for text, _ in seen] == [
        WORDS.decode(part) for part in ([one], more[:2], more[2:4], more[4:], [])
    ]
    assert [number for _, number in seen[:3]] == [0] * 3


def test_tokens_that_come_at_once_are_one_event(
    policy: openai.OpenAI, engine: Watched, monkeypatch: pytest.MonkeyPatch
):
    sample = engine.generate

    async def at_once(tokens: list[int], params: SamplingParams, *, on_tokens: Any) -> Any:
        completion = await sample(tokens, params)
        for number in range(1, len(completion.tokens)):
            on_tokens(completion.tokens[:number].tolist())
        await asyncio.sleep(0.5)
        return completion

    monkeypatch.setattr(engine, "generate", at_once)
    events = list(
        policy.completions.create(model="policy", prompt="a", seed=9, max_tokens=6, stream=True)
    )
    sampled = engine.seen[-1][2].tokens.tolist()
    assert len(sampled) == 6
    texts = [WORDS.decode(sampled[:-1]), WORDS.decode(sampled[-1:]), ""]
    assert [event.choices[0].text for event in events] == texts


def test_the_record_of_a_streamed_call_is_that_of_another(engine: Watched):
    records = []
    for stream in (False, True):
        # The keys of sessions begin again with the server.
        with serving(engine, WORDS, sampling=SAMPLING, max_prompt_tokens=200) as endpoint:
            with client(f"{endpoint.url}/v1") as policy:
                url = policy.post("/sessions", body={"task": "a task"}, cast_to=object)["base_url"]
            with client(url) as session:
                for _ in range(2):
                    list(session.chat.completions.create(**ASKED, stream=stream))
                records.append(
                    session.post("/reward", body={"reward": 1.0}, cast_to=object) | {"session": ""}
                )
    assert records[0] == records[1]
    assert len(records[0]["steps"]) == 2


@pytest.mark.parametrize("gone", ["session", "client"])
def test_a_stream_that_ends_early_is_not_recorded(
    slow: None, endpoint: Endpoint, policy: openai.OpenAI, engine: Watched, gone: str
):
    opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
    session = endpoint._sessions[opened["id"]]
    before = len(engine.seen)
    with client(opened["base_url"]) as caller:
        events = iter(caller.completions.create(model="policy", prompt="a", stream=True))
        assert next(events).choices[0].text
        if gone == "session":
            asyncio.run(endpoint.end_session(session))
            with pytest.raises(openai.APIError, match="no such session"):
                list(events)
        else:
            events.close()
    wait_until(lambda: not (session.running or engine._table.any_active()), 30)
    assert (session.running, session.turns, len(engine.seen)) == (0, [], before)
    asyncio.run(endpoint.end_session(session))


def test_an_engine_tells_the_tokens_of_a_response_that_is_not_complete(engine: Watched):
    for params in (SAMPLING, replace(SAMPLING, stop_strings=("ab",))):
        told: list[list[int]] = []

        async def ask(**more: Any) -> list[int]:
            return (await engine.generate(WORDS.encode("a\n"), params, **more)).tokens.tolist()  # noqa: B023

        tokens = asyncio.run(ask())
        assert asyncio.run(ask(on_tokens=told.append)) == tokens
        assert [len(each) for each in told] == list(range(1, len(tokens), 2))
        assert all(tokens[: len(each)] == each for each in told)


def test_tokens_of_a_part_of_a_character_have_their_own_bytes(policy: openai.OpenAI):
    choices = policy.chat.completions.create(**ASKED, n=16, seed=1, logprobs=True).choices
    rows = [row for choice in choices for row in choice.logprobs.content]
    parts = {(row.token, tuple(row.bytes)) for row in rows if max(row.bytes) >= 0x80}
    assert parts == {("\ufffd", (0xC3,)), ("\ufffd", (0xA9,))}
