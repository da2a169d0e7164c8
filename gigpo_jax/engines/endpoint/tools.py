"""Tool calls in responses, and in the messages that programs send back.

Three forms are read: any number of `<tool_call>{"name": .., "arguments": {..}}</tool_call>`
(Qwen2.5, Qwen3), the same with `<function=..>` (Qwen3-Coder, see `xml_calls`), and
`{"name": .., "parameters": {..}}` as the whole response (Llama 3). Reasoning, up to the first
`</think>`, has no calls; its `<think>` may be in the prompt.
"""

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gigpo_jax.engines.endpoint.xml_calls import FUNCTION, read_function

START = "<tool_call>"
END = "</tool_call>"
_JSON = json.JSONDecoder()


def read_calls(
    text: str, tools: Collection[str], prompt: str | tuple[int, ...]
) -> tuple[str, list[dict[str, Any]]]:
    """Splits a response into its text and its calls.

    Args:
      text: Text of the response.
      tools: Names of the tools that it may call; without any there are no calls. A mapping gives
        the JSON schema of each tool's arguments.
      prompt: Prompt of the response; its text may end with `<think>`.

    Returns:
      The text before the first call, and the calls as chat templates read them. If a call cannot be
      read, all text and no calls.
    """
    prompt_opens_thought = isinstance(prompt, str) and prompt.rstrip().endswith("<think>")
    # The second case: the response ended within the reasoning that its prompt began.
    if not tools or (prompt_opens_thought and "</think>" not in text):
        return text, []
    with contextlib.suppress(ValueError, RecursionError):
        call = _convert_call(json.loads(text), "parameters")
        # The name must be a tool's: an answer in JSON may have the same keys by chance.
        if call["function"]["name"] in tools:
            return "", [call]

    thought = ""
    thought_end = ""
    answer = text
    if "</think>" in text or text.lstrip().startswith("<think>"):
        thought, thought_end, answer = text.partition("</think>")
    schemas = tools if isinstance(tools, Mapping) else {}
    content, remainder = _split_at_call(answer, tools)
    calls = []
    with contextlib.suppress(ValueError, RecursionError):
        while remainder:
            call, remainder = _read_call(remainder.removeprefix(START).lstrip(), schemas)
            # The end tag may be missing: before another call, and at the end of the response.
            if remainder and not remainder.startswith((START, END, FUNCTION)):
                raise ValueError("text between a call and its end")
            calls.append(call)
            _, remainder = _split_at_call(remainder.removeprefix(END), tools)
        if calls:
            return (thought + thought_end + content).rstrip(), calls
    return text, []


def _split_at_call(text: str, tools: Collection[str]) -> tuple[str, str]:
    """Splits a text before its first call.

    Qwen3-Coder may leave the tag of a call out; then `<function=` starts the call if a tool has the
    name.
    """
    starts = [START, *(f"{FUNCTION}{name}>" for name in tools)]
    position = min((text.find(start) for start in starts if start in text), default=len(text))
    return text[:position], text[position:]


def _read_call(text: str, schemas: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Reads the call at the beginning of a text; returns it and the text behind it.

    Raises:
      ValueError: It cannot be read.
    """
    if text.startswith(FUNCTION):
        name, arguments, remainder = read_function(text, schemas)
        call = _convert_call({"name": name, "arguments": arguments}, "arguments")
        return call, remainder.lstrip()
    # The parser finds the end of the call: arguments may contain the end tag as text.
    raw_call, length = _JSON.raw_decode(text)
    return _convert_call(raw_call, "arguments"), text[length:].lstrip()


def openai_calls(calls: Sequence[Mapping[str, Any]], source: bytes) -> list[dict[str, Any]]:
    """Converts calls to OpenAI's form, with hashes of `source` as ids, so that runs repeat."""
    prefix = hashlib.blake2b(source, digest_size=12).hexdigest()
    return [
        {
            "id": f"call_{prefix}{index}",
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": _arguments_json(call["function"]["arguments"]),
            },
        }
        for index, call in enumerate(calls)
    ]


def chat_digests(messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Hashes roles, contents and calls of a chat up to each message, without the ids of calls."""
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        functions = [call["function"] for call in message.get("tool_calls", ())]
        calls = [[function["name"], function["arguments"]] for function in functions]
        content = [message["role"], message["content"], calls]
        # Programs may send arguments back with their keys in another order.
        digest.update(json.dumps(content, sort_keys=True).encode())
        yield digest.digest()


def restore_sampled_calls(
    messages: Sequence[Mapping[str, Any]], sampled_texts: Mapping[bytes, str]
) -> list[Mapping[str, Any]]:
    """Replaces messages with calls by the text that was sampled for them, where there is one.

    A template may write a call with other white space than the policy.

    Args:
      messages: Messages of a chat.
      sampled_texts: Text of each response, by the last of the `chat_digests` of the chat that ends
        with it.
    """
    restored = []
    for message, digest in zip(messages, chat_digests(messages), strict=True):
        text = sampled_texts.get(digest)
        restored.append(message if text is None else {"role": "assistant", "content": text})
    return restored


def _convert_call(call: Any, arguments_key: str) -> dict[str, Any]:
    """Converts parsed JSON to a call for chat templates.

    Raises:
      ValueError: It is no call with arguments under that key.
    """
    if not isinstance(call, dict):
        raise ValueError("no call of a tool")
    name = call.get("name")
    arguments = call.get(arguments_key)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("no call of a tool")
    # Raises UnicodeEncodeError, a ValueError, for half of a surrogate pair, which is no character.
    f"{name}{_arguments_json(arguments)}".encode()
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments_json(arguments: Mapping[str, Any]) -> str:
    # NaN is no JSON: clients could not parse it. The ValueError makes the call plain text.
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
