"""Tool calls: read from a response, and recognised when a program sends them back.

Two forms are read: any number of `<tool_call>{"name": .., "arguments": {..}}</tool_call>` (Qwen2.5, Qwen3), and
`{"name": .., "parameters": {..}}` as the whole response (Llama 3). Reasoning, up to the first `</think>`, has no calls;
its `<think>` may be in the prompt.
"""

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

START, END = "<tool_call>", "</tool_call>"
_JSON = json.JSONDecoder()


def read_calls(text: str, tools: Collection[str], prompt: str | tuple[int, ...]) -> tuple[str, list[dict[str, Any]]]:
    """Splits a response into the text before its calls and the calls.

    Args:
      text: of the response.
      tools: names of the tools that it may call; without any there are no calls.
      prompt: a text may end with `<think>`.

    Returns:
      The text before the first call, and the calls as chat templates read them. If a call cannot be read, all text and
      no calls.
    """
    began = isinstance(prompt, str) and prompt.rstrip().endswith("<think>")
    if not tools or (began and "</think>" not in text):
        return text, []
    with contextlib.suppress(ValueError, RecursionError):
        if (call := _call(json.loads(text), "parameters"))["function"]["name"] in tools:
            return "", [call]
    thinks = "</think>" in text or text.lstrip().startswith("<think>")
    thought, end, rest = text.partition("</think>") if thinks else ("", "", text)
    content, start, rest = rest.partition(START)
    calls = []
    with contextlib.suppress(ValueError, RecursionError):
        while start:
            call, length = _JSON.raw_decode(rest := rest.lstrip())
            rest = rest[length:].lstrip()
            if rest and not rest.startswith((START, END)):
                raise ValueError("more than a call")
            calls.append(_call(call, "arguments"))
            _, start, rest = rest.partition(START)
        if calls:
            return (thought + end + content).rstrip(), calls
    return text, []


def openai_calls(calls: Sequence[Mapping[str, Any]], source: bytes) -> list[dict[str, Any]]:
    """Calls as OpenAI writes them; their ids follow from `source`, so that episodes repeat."""
    name = hashlib.blake2b(source, digest_size=12).hexdigest()
    return [
        {
            "id": f"call_{name}{number}",
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": _text(call["function"]["arguments"])},
        }
        for number, call in enumerate(calls)
    ]


def digests(messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """A hash of a chat up to each of its messages: of roles, contents and calls, not of the ids of calls."""
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        functions = [call["function"] for call in message.get("tool_calls", ())]
        calls = [[function["name"], function["arguments"]] for function in functions]
        digest.update(json.dumps([message["role"], message["content"], calls], sort_keys=True).encode())
        yield digest.digest()


def as_sampled(messages: Sequence[Mapping[str, Any]], responses: Mapping[bytes, str]) -> list[Mapping[str, Any]]:
    """Messages with calls as the text that was sampled, where a session knows it.

    A template may write a call with other white space than the policy.

    Args:
      messages: of a chat.
      responses: text of a response by the last of the `digests` of the chat that ends with it.
    """
    texts = map(responses.get, digests(messages))
    return [
        message if text is None else {"role": "assistant", "content": text}
        for message, text in zip(messages, texts, strict=True)
    ]


def _call(call: Any, key: str) -> dict[str, Any]:
    """A call as chat templates read it, from parsed JSON; raises ValueError if there is none under `key`."""
    if not (isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get(key), dict)):
        raise ValueError("no call of a tool")
    f"{call['name']}{_text(call[key])}".encode()  # half of a surrogate pair is no character
    return {"type": "function", "function": {"name": call["name"], "arguments": call[key]}}


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
