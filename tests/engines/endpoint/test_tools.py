"""Tool calls with the official client, and with an agent of smolagents, against a policy that
writes them.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import openai
import pytest

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.endpoint.server import Endpoint
from gigpo_jax.engines.endpoint.tools import read_calls
from gigpo_jax.models.text.chat_messages import chat_text
from tests.engines.endpoint import bigram
from tests.engines.endpoint.serving import Watched, make_engine, serving

# Calls with other white space and in other pieces than the template and the tokenizer give them.
TABLE = {
    bigram.REPLY: {"i look.\n": 0.5, "<tool_call>": 0.5},
    "i look.\n": {"<tool_call>": 1.0},
    "<tool_call>": {'{"name": ': 0.5, '\n{"name":': 0.5},
    "\n<tool_call>": {'{"name": ': 0.5, '\n{"name":': 0.5},
    '{"name": ': {'"look"': 0.5, '"lo': 0.5},
    '\n{"name":': {'"look"': 0.5, '"lo': 0.5},
    '"lo': {'ok"': 1.0},
    '"look"': {', "arguments": ': 0.5, ',"arguments":': 0.5},
    'ok"': {', "arguments": ': 0.5, ',"arguments":': 0.5},
    ', "arguments": ': {'{"at": "door"}': 0.5, '{"at":"key"}': 0.5},
    ',"arguments":': {'{"at": "door"}': 0.5, '{"at":"key"}': 0.5},
    '{"at": "door"}': {"}": 1.0},
    '{"at":"key"}': {"}": 1.0},
    "}": {"</tool_call>": 0.5, "\n</tool_call>": 0.5},
    "</tool_call>": {"\n<tool_call>": 0.4, bigram.END: 0.6},
    "\n</tool_call>": {"\n<tool_call>": 0.4, bigram.END: 0.6},
}
WORDS = bigram.tokenizer(TABLE)
SAMPLING = SamplingParams(temperature=1.0, max_tokens=60, stop_token_ids=WORDS.stop_token_ids)
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
ROOM = [{"role": "user", "content": "a room."}]
ASKED = {"model": "policy", "messages": ROOM, "tools": [LOOK]}


@pytest.fixture(scope="module")
def engine() -> Iterator[Watched]:
    with make_engine(bigram.policy(TABLE, WORDS), WORDS, 1100) as made:
        yield made


@pytest.fixture(scope="module")
def endpoint(engine: Watched) -> Iterator[Endpoint]:
    with serving(engine, WORDS, sampling=SAMPLING, max_prompt_tokens=1000) as made:
        yield made


def called(message: Any) -> list[tuple[str, dict[str, str]]]:
    """The calls of a message, in plain values."""
    return [
        (call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls
    ]


def written(text: str) -> list[tuple[str, dict[str, str]]]:
    """The calls that a response of the policy has."""
    return [("look", {"at": thing}) for thing in re.findall("door|key", text)]


@pytest.mark.slow
def test_calls_come_back_structured(policy: openai.OpenAI, engine: Watched):
    choices = policy.chat.completions.create(**ASKED, n=16, seed=1).choices
    texts = [WORDS.decode(completion.tokens.tolist()) for _, _, completion in engine.seen[-16:]]
    assert sorted(map(repr, map(written, texts))) == sorted(
        repr(called(choice.message)) for choice in choices
    )
    assert {len(choice.message.tool_calls) for choice in choices} >= {1, 2}
    assert {choice.message.content for choice in choices} == {None, "i look."}
    assert {choice.finish_reason for choice in choices} == {"tool_calls"}
    ids = {call.id for choice in choices for call in choice.message.tool_calls}
    assert len(ids) > 16
    again = policy.chat.completions.create(**ASKED, n=16, seed=1).choices
    assert {
        call.id for choice in again for call in choice.message.tool_calls
    } == ids  # prompts may show them
    assert engine.seen[-1][0] == WORDS.encode(chat_text(WORDS, ROOM, [LOOK]))


@pytest.mark.parametrize("without", [{"tools": []}, {"tool_choice": "none"}])
def test_without_tools_a_call_is_text(policy: openai.OpenAI, engine: Watched, without: dict):
    choice = policy.chat.completions.create(**ASKED | without).choices[0]
    assert choice.message.content == WORDS.decode(engine.seen[-1][2].tokens.tolist())
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert engine.seen[-1][0] == WORDS.encode(chat_text(WORDS, ROOM))


def test_a_stream_has_the_calls_of_the_answer(policy: openai.OpenAI):
    whole = policy.chat.completions.create(**ASKED, seed=4).choices[0]
    events = [
        event.choices[0] for event in policy.chat.completions.create(**ASKED, seed=4, stream=True)
    ]
    calls = [call for event in events for call in event.delta.tool_calls or ()]
    assert [call.index for call in calls] == list(range(len(whole.message.tool_calls)))
    assert [(call.id, call.function) for call in calls] == [
        (
            call.id,
            openai.types.chat.chat_completion_chunk.ChoiceDeltaToolCallFunction(
                **call.function.model_dump()
            ),
        )
        for call in whole.message.tool_calls
    ]
    assert "".join(event.delta.content or "" for event in events) == (whole.message.content or "")
    assert [event.finish_reason for event in events if event.finish_reason] == ["tool_calls"]


def test_prompts_of_a_session_have_the_exact_tokens_of_its_calls(
    session: openai.OpenAI, engine: Watched
):
    before = len(engine.seen)
    messages = list(ROOM)
    for turn in range(3):
        said = session.chat.completions.create(**ASKED | {"messages": messages}).choices[0].message
        calls = [
            # As programs do that keep calls in types of their own.
            call.model_dump()
            | {
                "function": {
                    "name": "look",
                    "arguments": json.dumps(json.loads(call.function.arguments)),
                }
            }
            for call in said.tool_calls
        ]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"nothing {turn}"}
            for call in calls
        ]
        messages += [{"role": "assistant", "content": said.content, "tool_calls": calls}, *results]
    record = session.post("/reward", body={"reward": 1.0}, cast_to=object)
    seen = engine.seen[before:]
    assert [step["prompt_tokens"] for step in record["steps"]] == [tokens for tokens, _, _ in seen]
    assert [step["finish_reason"] for step in record["steps"]] == ["stop"] * 3
    for (tokens, _, completion), (later, _, _) in itertools.pairwise(seen):
        read = [*tokens, *completion.tokens.tolist()]
        assert later[: len(read)] == read
        assert "nothing" in WORDS.decode(later[len(read) :])
    plain = WORDS.encode(chat_text(WORDS, past(messages), [LOOK]))
    assert plain[: len(seen[2][0])] != seen[2][0]  # the template writes calls in other tokens
    assert WORDS.decode(plain) != WORDS.decode(seen[2][0])
    assert record["steps"][2]["anchor"] == "nothing 1"


def past(messages: list[dict]) -> list[dict]:
    """The messages before the last response, as a template reads them."""
    until = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
    functions = [
        [call["function"] for call in message.get("tool_calls", ())] for message in messages[:until]
    ]
    return [
        message
        | {"content": message["content"] or ""}
        | {
            "tool_calls": [
                {"function": f | {"arguments": json.loads(f["arguments"])}} for f in each
            ]
        }
        for message, each in zip(messages, functions, strict=False)
    ]


def test_calls_that_were_not_sampled_go_through_the_template(
    session: openai.OpenAI, engine: Watched
):
    sampled = session.chat.completions.create(**ASKED).choices[0].message.model_dump()
    for arguments in ('{"at":"wall"}', ""):
        call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}
        said = sampled | {"tool_calls": [call]}
        messages = [*ROOM, said, {"role": "tool", "tool_call_id": "a", "content": "rusty"}]
        session.chat.completions.create(**ASKED | {"messages": messages})
        shown = json.dumps(json.loads(arguments or "{}"))
        text = f'<tool_call>\n{{"name": "look", "arguments": {shown}}}\n</tool_call>\nuser\nrusty'
        assert text in WORDS.decode(engine.seen[-1][0])


def test_an_agent_of_smolagents_calls_its_tools(session: openai.OpenAI, engine: Watched):
    import smolagents

    asked: list[str] = []

    class Look(smolagents.Tool):
        name = "look"
        description = "Looks at a thing."
        inputs: ClassVar = {"at": {"type": "string", "description": "the thing"}}
        output_type = "string"

        def forward(self, at: str) -> str:
            asked.append(at)
            return f"a {at}"

    model = smolagents.OpenAIServerModel(
        "policy", api_base=str(session.base_url), api_key=session.api_key, tool_choice="auto"
    )
    prompts = {**smolagents.agents.EMPTY_PROMPT_TEMPLATES, "system_prompt": "you call tools."}
    before = len(engine.seen)
    agent = smolagents.ToolCallingAgent(
        [Look()], model, prompt_templates=prompts, max_steps=2, verbosity_level=0
    )
    agent.run("look around")
    texts = [
        WORDS.decode(completion.tokens.tolist())
        for _, _, completion in engine.seen[before : before + 2]
    ]
    assert asked == [
        thing for text in texts for _, call in written(text) for thing in call.values()
    ]
    assert "a " + asked[0] in WORDS.decode(engine.seen[before + 1][0])


CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>'
LLAMA = '{"name": "look", "parameters": {"at": "sea"}}'


@pytest.mark.parametrize(
    ("text", "content", "number"),
    [
        (CALL, "", 1),
        (f"i see.\n\n{CALL}\n{CALL} done", "i see.", 2),
        (CALL.removesuffix("</tool_call>"), "", 1),  # a stop of the request
        (f"<think>{CALL}</think>\n\n{CALL}", f"<think>{CALL}</think>", 1),
        (f"\n<think>{CALL}</think>{CALL}", f"\n<think>{CALL}</think>", 1),
        (
            f"i could {CALL}</think>\n\n{CALL}",
            f"i could {CALL}</think>",
            1,
        ),  # the prompt has <think>
        (f"<think>{CALL}", ..., 0),
        (f"\n<think>{CALL}", ..., 0),
        (CALL.replace("look", "go"), "", 1),  # no such tool: the program says so
        (LLAMA, "", 1),
        (LLAMA.replace("look", "go"), ..., 0),  # JSON that is no call
        (f"it is {LLAMA}", ..., 0),
        (CALL.replace("}}", "}"), ..., 0),
        (CALL.replace("}}", "}}}"), ..., 0),
        (f"{CALL}{CALL.replace('{', '[')}", ..., 0),
        (CALL.replace("look", "\\ud800"), ..., 0),
        (CALL.replace('"sea"', "NaN"), ..., 0),
        (CALL.replace('{"at": "sea"}', '"sea"'), ..., 0),
        (CALL.replace('"sea"', "[" * 100_000), ..., 0),
        ("<tool_call>", ..., 0),
        ("[1]", ..., 0),
        ("", ..., 0),
    ],
)
def test_a_call_is_read_or_stays_text(text: str, content: str, number: int):
    call = {
        "type": "function",
        "function": {"name": "go" if '"go"' in text else "look", "arguments": {"at": "sea"}},
    }
    assert read_calls(text, ["look"], "") == (text if content is ... else content, [call] * number)
    assert read_calls(text, [], "") == (text, [])


def test_a_response_that_ends_in_reasoning_that_the_prompt_began_has_no_calls():
    prompt = chat_text(WORDS, ROOM, [LOOK])
    for text in (CALL, f"i could {CALL}", LLAMA):
        assert read_calls(text, ["look"], prompt + "<think>\n") == (text, [])
    thought = f"i could {CALL}</think>"
    assert read_calls(f"{thought}\n\n{CALL}", ["look"], prompt + "<think>\n")[0] == thought


@pytest.mark.parametrize("tag", ["<tool_call>", "</tool_call>"])
def test_arguments_may_have_the_tags_of_calls(tag: str):
    arguments = {"at": f"a {tag} b"}
    call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    text = CALL.replace("sea", arguments["at"])
    assert read_calls(f"so {text}\n{text}", ["look"], "") == ("so", [call, call])
    assert read_calls(LLAMA.replace("sea", arguments["at"]), ["look"], "") == ("", [call])


SCHEMA = {
    "properties": {
        "at": {"type": "string"},
        "steps": {"type": "integer"},
        "far": {"type": "boolean"},
        "path": {"type": "array"},
        "note": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "turns": {"enum": [1, 2]},
    }
}
CODER = "<tool_call>\n<function=look>\n<parameter=at>\n{}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("at", "3", "3"),
        ("at", "null", "null"),
        ("at", " two\nlines\n", " two\nlines\n"),
        (
            "at",
            "a </parameter> b </function> <tool_call>",
            "a </parameter> b </function> <tool_call>",
        ),
        ("steps", "3", 3),
        ("steps", "three", "three"),
        ("steps", "true", "true"),
        ("far", "True", True),
        ("path", '["a", 1]', ["a", 1]),
        ("path", '"a"', '"a"'),
        ("note", "2.5", 2.5),
        ("note", "null", None),
        ("turns", "2", 2),
        ("other", "3", "3"),
    ],
)
def test_values_of_qwen3_coder_have_the_types_of_the_schema(name: str, written: str, value: Any):
    text = CODER.replace("=at>", f"={name}>").format(written)
    _, calls = read_calls(text, {"look": SCHEMA}, "")
    assert [call["function"] for call in calls] == [{"name": "look", "arguments": {name: value}}]


@pytest.mark.parametrize(
    ("text", "content", "number"),
    [
        (CODER, "", 1),
        (f"i see.\n{CODER}\n{CODER} done", "i see.", 2),
        (CODER.removeprefix("<tool_call>\n"), "", 1),  # as the model writes at times
        (CODER.removesuffix("</tool_call>"), "", 1),
        (f"{CALL}{CODER}", "", 2),
        (f"<think>{CODER}</think>{CODER}", f"<think>{CODER}</think>", 1),
        (CODER.replace("look", "go"), "", 1),
        (CODER.replace("look", "go").removeprefix("<tool_call>\n"), ..., 0),
        (CODER.replace("</function>", ""), ..., 0),
        (CODER.replace("</parameter>", ""), ..., 0),
        (CODER.replace("</function>", "so</function>"), ..., 0),
        (CODER.replace("=look", "="), ..., 0),
        (f"{CODER}{CODER.replace('<parameter=at>', '')}", ..., 0),
        (f"<think>{CODER}", ..., 0),
    ],
)
def test_a_call_of_qwen3_coder_is_read_or_stays_text(text: str, content: str, number: int):
    text = text.replace("{}", "sea")
    if content is not ...:
        content = content.replace("{}", "sea")
    name = "go" if "=go>" in text else "look"
    call = {"type": "function", "function": {"name": name, "arguments": {"at": "sea"}}}
    assert read_calls(text, ["look"], "") == (text if content is ... else content, [call] * number)
    assert read_calls(text, [], "") == (text, [])
