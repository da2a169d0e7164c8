"""Requests to the endpoint, and chats for a template."""

import asyncio
import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.endpoint.answers import read_reply
from gigpo_jax.engines.endpoint.interfaces import INTERFACES, RequestReader
from gigpo_jax.engines.endpoint.requests import read_outcome
from gigpo_jax.engines.endpoint.responses import remember_chat
from gigpo_jax.engines.endpoint.settings import EndpointSettings
from gigpo_jax.models.text.chat_messages import chat_text
from gigpo_jax.models.text.chat_template import ChatTemplate
from tests.engines.endpoint import bigram
from tests.fuzz.inputs import dump, parse_object
from tests.fuzz.responses import TOOLS
from tests.tools.import_gguf.files import TEMPLATE

ARGUMENTS = json.dumps({"n": 1})
FUNCTION = {"name": "look", "description": "looks", "parameters": TOOLS["look"]}
SAMPLING = SamplingParams(temperature=1.0, max_tokens=8, key=(0, 0))


def read_chat(data: bytes) -> None:
    """Messages and tools for a template of the model, and a template of others."""
    content = parse_object(data)
    if isinstance(content.get("messages"), list):
        tools = content.get("tools") if isinstance(content.get("tools"), list) else []
        text = chat_text(words(), content["messages"], tools)
        words().encode(text.encode(errors="replace").decode())
        if isinstance(content.get("template"), str):
            template = ChatTemplate(content["template"], {"bos_token": "<s>"})
            template.render(content["messages"], tools)


def seed_chats() -> list[bytes]:
    call = {"type": "function", "function": {"name": "look", "arguments": {"n": 1}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    messages = [
        {"role": "system", "content": "<|im_end|>"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42"},
    ]
    return dump({"messages": messages, "tools": [tool], "template": TEMPLATE})


@cache
def words() -> Any:
    return bigram.tokenizer({bigram.REPLY: {"a": 0.5, "b": 0.5}})


@cache
def readers() -> list[RequestReader]:
    settings = {"host": "127.0.0.1", "port": 0, "key": "key", "model": "policy"}
    limits = {"sampling": SAMPLING, "max_prompt_tokens": 4096, "max_calls": 9}
    return [
        RequestReader(words(), EndpointSettings(**settings, **limits, clamp=clamp))
        for clamp in (False, True)
    ]


def read_request(data: bytes) -> None:
    """Requests of the endpoint's four interfaces, with the answers that repeat their fields."""
    content = parse_object(data)
    if not isinstance(content.get("body"), dict):
        return
    body, interface = content["body"], content.get("interface")
    if interface == "reward":
        read_outcome(body, 2, 1e6)
        return
    if not isinstance(interface, str) or interface not in INTERFACES:
        return
    session = SimpleNamespace(
        chats={"resp_1": [{"role": "user", "content": "x"}]},
        sampled_texts={},
        sampling=SAMPLING,
        max_prompt_tokens=4096,
        prompt_tokens=lambda prompt, tokenizer, is_chat: tokenizer.encode(prompt),
    )
    is_recorded = bool(content.get("session"))
    reader = readers()[bool(content.get("clamp"))]
    call = asyncio.run(reader.read(interface, body, session if is_recorded else None))
    form = reader.make_form(interface, call, body)
    tokens = np.asarray(words().encode('<tool_call>{"name": "look", "arguments": {}}'), np.int32)
    completion = Completion(tokens, np.zeros(len(tokens), np.float32), "stop", 0)
    reply = read_reply(call.request, call.tokens, completion, words())
    if interface == "responses":
        remember_chat(body, call.chat, reply)
    json.dumps(form.answer([reply] * call.request.choices))
    list(form.last_events([reply] * call.request.choices))


def chat_body() -> dict[str, Any]:
    """A body of chat completions."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}
    return {
        "model": "policy",
        "messages": [
            {"role": "developer", "content": "short"},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "max_tokens": 4,
        "n": 1,
        "stop": ["\n"],
        "logprobs": True,
        "stream": False,
        "stream_options": {"include_usage": True},
        "seed": 3,
        "tool_choice": "auto",
    }


def responses_body() -> dict[str, Any]:
    """A body of responses, without an earlier one."""
    return {
        "model": "policy",
        "instructions": "short",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "include": ["message.output_text.logprobs"],
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "max_output_tokens": 4,
    }


def messages_body() -> dict[str, Any]:
    """A body of messages."""
    return {
        "model": "policy",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "short"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "tool_use", "id": "c", "name": "look", "input": {"n": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
        ],
        "tools": [{"name": "look", "description": "looks", "input_schema": TOOLS["look"]}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "stop_sequences": ["\n"],
    }


def seed_requests() -> list[bytes]:
    """Requests of each interface, in sessions and without, and a reward."""
    completion = {"model": "policy", "prompt": "hello", "max_tokens": 4, "top_p": 1, "top_k": -1}
    bodies = (chat_body(), completion, responses_body(), messages_body())
    named = dict(zip(INTERFACES, bodies, strict=True))
    plain = [{"interface": name, "body": body} for name, body in named.items()]
    # Sessions alone remember responses.
    named["responses"] = named["responses"] | {"previous_response_id": "resp_1"}
    recorded = [
        {"interface": name, "body": {**body, "seed": None}, "session": True, "clamp": True}
        for name, body in named.items()
    ]
    reward = {"interface": "reward", "body": {"reward": [0, 1.0], "won": True, "score": 0.5}}
    return dump(*plain, *recorded, reward)
