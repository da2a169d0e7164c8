"""Anthropic's Messages, /v1/messages: read as chats, answered in their own form."""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gigpo_jax.engines.endpoint.answers import Answer, Reply, named_event
from gigpo_jax.engines.endpoint.requests import PolicyRequest, RequestError

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_TOOL_CHOICES = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
# Fields that are the same in a chat.
_SAME = ("model", "stream", "temperature", "top_p", "top_k")


def convert_messages(body: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a request to the form of a chat, without the thoughts of earlier responses.

    Anthropic's servers leave these thoughts out too.

    Raises:
      RequestError: A message or a tool has no such form.
    """
    messages = []
    if body.get("system"):
        messages.append({"role": "system", "content": _join_blocks(body["system"], "system")})
    raw_messages = body.get("messages")
    if not isinstance(raw_messages, list):
        raise RequestError("messages: must be a list", param="messages")
    for index, message in enumerate(raw_messages):
        messages += _read_message(message, f"messages[{index}]")
    chat: dict[str, Any] = {name: body[name] for name in _SAME if name in body}
    chat |= {"messages": messages, "max_tokens": body.get("max_tokens")}
    chat["stop"] = body.get("stop_sequences")
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise RequestError("tools: must be a list", param="tools")
    chat["tools"] = [_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    return chat | _read_tool_choice(body.get("tool_choice"))


def messages_error(err: RequestError) -> Answer:
    """Returns the body of an error in Anthropic's form."""
    default = "api_error" if err.status >= 500 else "invalid_request_error"
    error = {"type": _ERRORS.get(err.status, default), "message": str(err)}
    return {"type": "error", "error": error}


class MessagesForm:
    """The answer to one request; see `streams.AnswerForm`."""

    end = ""

    def __init__(self, request: PolicyRequest, prompt_length: int, model: str) -> None:
        """Fixes the id.

        Args:
          request: Request of one response.
          prompt_length: Number of tokens of the prompt.
          model: Name of the policy.
        """
        self.request = request
        self.id = f"msg_{secrets.token_hex(12)}"
        self._prompt_length = prompt_length
        self._model = model
        self._sent_text = ""

    def answer(self, replies: Sequence[Reply]) -> Answer:
        """Returns the whole answer."""
        (reply,) = replies
        content: list[Answer] = []
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        for call in reply.calls:
            arguments = json.loads(call["function"]["arguments"])
            content.append(_tool_use(call) | {"input": arguments})
        return self._head() | self._end(reply) | {"content": content, "usage": self._usage(reply)}

    def text_events(self, index: int, text: str) -> Iterator[str]:
        """Yields the events of some new text."""
        if not self._sent_text:
            yield from self._start()
            block = {"type": "text", "text": ""}
            yield named_event({"type": "content_block_start", "index": 0, "content_block": block})
        self._sent_text += text
        yield _delta(0, {"type": "text_delta", "text": text})

    def last_events(self, replies: Sequence[Reply]) -> Iterator[str]:
        """Yields the events of the unsent text, the calls and the end."""
        (reply,) = replies
        unsent_text = reply.text[len(self._sent_text) :]
        if unsent_text:
            yield from self.text_events(0, unsent_text)
        index = 0
        if self._sent_text:
            yield named_event({"type": "content_block_stop", "index": index})
            index += 1
        else:
            yield from self._start()
        for call in reply.calls:
            block = _tool_use(call)
            yield named_event(
                {"type": "content_block_start", "index": index, "content_block": block}
            )
            arguments = call["function"]["arguments"]
            yield _delta(index, {"type": "input_json_delta", "partial_json": arguments})
            yield named_event({"type": "content_block_stop", "index": index})
            index += 1
        end = {"type": "message_delta", "delta": self._end(reply), "usage": self._usage(reply)}
        yield named_event(end)
        yield named_event({"type": "message_stop"})

    def error_event(self, err: RequestError) -> str:
        """Returns the event of a failure after the first event."""
        return named_event(messages_error(err))

    def _head(self) -> Answer:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(None),
        }

    def _start(self) -> Iterator[str]:
        yield named_event({"type": "message_start", "message": self._head()})

    def _end(self, reply: Reply) -> Answer:
        reason = "stop_sequence" if reply.stop else _STOP_REASONS[reply.finish_reason]
        return {"stop_reason": reason, "stop_sequence": reply.stop or None}

    def _usage(self, reply: Reply | None) -> Answer:
        return {
            "input_tokens": self._prompt_length,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0 if reply is None else len(reply.completion.tokens),
        }


def _tool_use(call: Mapping[str, Any]) -> Answer:
    name = call["function"]["name"]
    return {"type": "tool_use", "id": call["id"], "name": name, "input": {}}


def _delta(index: int, delta: Answer) -> str:
    return named_event({"type": "content_block_delta", "index": index, "delta": delta})


def _read_message(message: Any, label: str) -> list[dict[str, Any]]:
    """Converts a message; each result of a tool becomes a message of its own."""
    if not isinstance(message, dict):
        raise RequestError(f"{label}: must be an object", param="messages")
    role = message.get("role")
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    messages = []
    text = ""
    calls = []
    for block in _list_blocks(content, label):
        kind = block.get("type")
        if kind == "tool_use":
            arguments = json.dumps(block.get("input"), ensure_ascii=False)
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            if text:
                messages.append({"role": role, "content": text})
                text = ""
            result = _join_blocks(block.get("content") or "", label)
            call_id = block.get("tool_use_id")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        elif kind not in ("thinking", "redacted_thinking"):
            text += _join_blocks([block], label)
    if calls:
        messages.append({"role": role, "content": text, "tool_calls": calls})
    elif text or not messages:
        messages.append({"role": role, "content": text})
    return messages


def _list_blocks(content: Any, label: str) -> list[dict[str, Any]]:
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        return content
    raise RequestError(f"{label}: content must be text or a list of blocks", param="messages")


def _join_blocks(content: Any, label: str) -> str:
    """Returns the text of a content that is a text or a list of such blocks."""
    if isinstance(content, str):
        return content
    texts = []
    for block in _list_blocks(content, label):
        text = block.get("text")
        if block.get("type") != "text" or not isinstance(text, str):
            raise RequestError(
                f"{label}: a block of type {block.get('type')!r:.40}; only text, tool_use and "
                "tool_result are taken",
                param="messages",
            )
        texts.append(text)
    return "".join(texts)


def _read_tool(tool: Any, label: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
        raise RequestError(
            f"{label}: must be {{'name': .., 'input_schema': {{..}}}}; tools of Anthropic's "
            "servers are not there",
            param="tools",
        )
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _read_tool_choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(kind, str) or kind not in _TOOL_CHOICES:
        raise RequestError("tool_choice: must be an object with a type", param="tool_choice")
    read: dict[str, Any] = {"tool_choice": _TOOL_CHOICES[kind]}
    if choice.get("disable_parallel_tool_use"):
        read["parallel_tool_calls"] = False
    return read
