"""Fields of requests that cannot be honoured."""

import json
from collections.abc import Iterator

import pytest

from gigpo_jax.engines.endpoint.server import Endpoint
from tests.engines.endpoint.serving import HEADS, MAX_PROMPT, make_engine, post, serving


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with make_engine() as engine, serving(engine) as made:
        yield made


def calling(arguments: object) -> dict:
    """A response that calls a tool."""
    return {
        "role": "assistant",
        "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "gpt"}, 404, "this endpoint has 'policy'"),
        ({"messages": []}, 400, "at least one"),
        ({"messages": [{"role": "boss", "content": "x"}]}, 400, "must be an object with a role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "pictures"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "surrogate"),
        (
            {"messages": [{"role": "user", "content": "door " * 100}]},
            400,
            f"max_prompt_tokens={MAX_PROMPT}",
        ),
        ({"max_tokens": 9}, 400, "from 1 to config.sampling.max_response_tokens=8"),
        ({"max_completion_tokens": "8"}, 400, "must be of type int"),
        ({"temperature": -1}, 400, "at least 0"),
        ({"temperature": 10**400}, 400, "must be a number"),
        ({"top_k": 10**12, "max_tokens": 0}, 400, "max_tokens=0"),
        ({"n": 17}, 400, "from 1 to 16"),
        ({"stop": ["a", ""]}, 400, "stop"),
        ({"top_logprobs": 3}, 400, "not supported"),
        ({"response_format": {"type": "json_object"}}, 400, "not supported"),
        ({"tool_choice": "required"}, 400, "not supported"),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, 400, "not supported"),
        ({"parallel_tool_calls": False}, 400, "not supported"),
        ({"tools": [{"name": "look"}]}, 400, "tools[0]: must be"),
        ({"messages": [{"role": "assistant", "tool_calls": "look"}]}, 400, "must be of type list"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            400,
            "messages[0].tool_calls: each must",
        ),
        ({"messages": [calling("no JSON")]}, 400, "the JSON text of an object"),
        ({"messages": [calling("[1]")]}, 400, "the JSON text of an object"),
        ({"messages": [calling({})]}, 400, "the JSON text of an object"),
        ({"min_tokens": 3}, 400, "min_tokens: not supported"),
        ({"ignore_eos": True}, 400, "ignore_eos: not supported"),
        ({"stop_token_ids": [5]}, 400, "stop_token_ids: not supported"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            400,
            "chat_template_kwargs: not supported",
        ),
        ({"add_generation_prompt": False}, 400, "add_generation_prompt: not supported"),
        ({"continue_final_message": True}, 400, "continue_final_message: not supported"),
        ({"guided_json": {}}, 400, "guided_json: not supported"),
        ({"include_stop_str_in_output": True}, 400, "include_stop_str_in_output: not supported"),
        ({"stream": "yes"}, 400, "must be of type bool"),
    ],
)
def test_requests_that_cannot_be_honoured_are_refused(
    endpoint: Endpoint, body: dict, status: int, says: str
):
    found, error = post(endpoint, "/v1/chat/completions", json.dumps(HEADS | body))
    assert found == status
    assert says in error["message"]
