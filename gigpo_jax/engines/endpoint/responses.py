"""OpenAI's Responses, /v1/responses: read as chats, answered in their own form.

Nothing is stored but within a session, where `previous_response_id` continues a response.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gigpo_jax.engines.endpoint.answers import Answer, Reply, describe_logprobs, named_event
from gigpo_jax.engines.endpoint.requests import PolicyRequest, RequestError
from gigpo_jax.models.text.tokenizer import Tokenizer

_TEXT_PARTS = ("input_text", "output_text", "text")
_LOGPROBS = "message.output_text.logprobs"
# Fields that are the same in a chat.
_SAME = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_logprobs",
    "tool_choice",
    "parallel_tool_calls",
)
# Fields that would change the response, and their values without effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "truncation": ("disabled",),
}
Messages = list[dict[str, Any]]


def convert_responses(body: Mapping[str, Any], chats: Mapping[str, Messages]) -> dict[str, Any]:
    """Converts the body of a request to the form of a chat.

    Args:
      body: Parsed JSON.
      chats: Messages up to and with each response of the session, by its id.

    Raises:
      RequestError: An item or a tool has no such form.
    """
    for name, neutral_values in _NEUTRAL.items():
        if body.get(name) is not None and body[name] not in neutral_values:
            raise RequestError(f"{name}: not supported; leave it out", param=name)
    messages = [*_earlier_messages(body, chats), *_read_input(body.get("input"))]
    # The instructions are those of this request, also behind an earlier response.
    if body.get("instructions"):
        messages.insert(0, {"role": "developer", "content": body["instructions"]})
    chat = {name: body[name] for name in _SAME if name in body}
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise RequestError("tools: must be a list", param="tools")
    included = body.get("include") or []
    if not isinstance(included, list):
        raise RequestError("include: must be a list", param="include")
    chat |= {
        "messages": messages,
        "tools": [_read_tool(tool, index) for index, tool in enumerate(tools)],
        "max_completion_tokens": body.get("max_output_tokens"),
        "logprobs": _LOGPROBS in included,
    }
    text = body.get("text")
    if isinstance(text, dict):
        chat["response_format"] = text.get("format")
    return chat


def remember_chat(
    body: Mapping[str, Any], chat: Mapping[str, Any], reply: Reply
) -> list[dict[str, Any]]:
    """Returns the messages that a later request continues: the chat without its instructions."""
    messages = chat["messages"][1 if body.get("instructions") else 0 :]
    answer: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        answer["tool_calls"] = list(reply.calls)
    return [*messages, answer]


class ResponsesForm:
    """The answer to one request; see `streams.AnswerForm`."""

    end = ""

    def __init__(
        self,
        request: PolicyRequest,
        prompt_length: int,
        model: str,
        tokenizer: Tokenizer,
        body: Mapping[str, Any],
    ) -> None:
        """Fixes the ids.

        Args:
          request: Request of one response.
          prompt_length: Number of tokens of the prompt.
          model: Name of the policy.
          tokenizer: Tokenizer of the responses.
          body: Body of the request, some of whose fields the answer repeats.
        """
        self.request = request
        self.id = f"resp_{secrets.token_hex(12)}"
        self._item_id = f"msg_{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._prompt_length = prompt_length
        self._model = model
        self._tokenizer = tokenizer
        self._body = body
        self._sent_text = ""
        self._events = 0

    def answer(self, replies: Sequence[Reply]) -> Answer:
        """Returns the whole answer."""
        (reply,) = replies
        is_whole = reply.finish_reason != "length"
        details = None if is_whole else {"reason": "max_output_tokens"}
        return self._head() | {
            "status": "completed" if is_whole else "incomplete",
            "incomplete_details": details,
            "output": self._output(reply),
            "usage": self._usage(reply),
        }

    def text_events(self, index: int, text: str) -> Iterator[str]:
        """Yields the events of some new text."""
        if not self._sent_text:
            yield from self._start()
            item = self._message("", [], "in_progress") | {"content": []}
            yield self._event("response.output_item.added", output_index=0, item=item)
            part = _text_part("", [])
            yield self._part_event("response.content_part.added", part=part)
        self._sent_text += text
        yield self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def last_events(self, replies: Sequence[Reply]) -> Iterator[str]:
        """Yields the events of the unsent text, the calls and the end."""
        (reply,) = replies
        unsent_text = reply.text[len(self._sent_text) :]
        if unsent_text:
            yield from self.text_events(0, unsent_text)
        if not self._sent_text:
            yield from self._start()
        answer = self.answer(replies)
        for index, item in enumerate(answer["output"]):
            if item["type"] == "message":
                (part,) = item["content"]
                text = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._part_event("response.output_text.done", **text)
                yield self._part_event("response.content_part.done", part=part)
            else:
                yield from self._call_events(index, item)
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._event(f"response.{answer['status']}", response=answer)

    def error_event(self, err: RequestError) -> str:
        """Returns the event of a failure after the first event."""
        fields = {"code": err.code, "message": str(err), "param": err.param}
        return self._event("error", **fields)

    def _start(self) -> Iterator[str]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._head())

    def _call_events(self, index: int, item: Answer) -> Iterator[str]:
        place = {"output_index": index, "item_id": item["id"]}
        added = item | {"arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=added)
        arguments = item["arguments"]
        kind = "response.function_call_arguments"
        yield self._event(f"{kind}.delta", delta=arguments, **place)
        yield self._event(f"{kind}.done", name=item["name"], arguments=arguments, **place)

    def _part_event(self, kind: str, **fields: Any) -> str:
        """Builds an event of the message's only part."""
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        number = self._events
        self._events += 1
        return named_event({"type": kind, "sequence_number": number} | fields)

    def _head(self) -> Answer:
        """Returns the fields of an answer fixed before sampling."""
        body = self._body
        sampling = self.request.sampling
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata") or {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": body.get("previous_response_id"),
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _output(self, reply: Reply) -> list[Answer]:
        """Returns the items of the answer: its text, if there is any, and its calls."""
        status = "incomplete" if reply.finish_reason == "length" else "completed"
        items = []
        if reply.text or not reply.calls:
            logprobs = []
            if self.request.logprobs:
                logprobs = describe_logprobs(self._tokenizer, reply.completion)
            items.append(self._message(reply.text, logprobs, status))
        for call in reply.calls:
            items.append(
                {
                    "type": "function_call",
                    "id": "fc_" + call["id"].removeprefix("call_"),
                    "call_id": call["id"],
                    **call["function"],
                    "status": status,
                }
            )
        return items

    def _message(self, text: str, logprobs: list[Answer], status: str) -> Answer:
        return {
            "type": "message",
            "id": self._item_id,
            "role": "assistant",
            "status": status,
            "content": [_text_part(text, logprobs)],
        }

    def _usage(self, reply: Reply) -> Answer:
        sampled = len(reply.completion.tokens)
        return {
            "input_tokens": self._prompt_length,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._prompt_length + sampled,
        }


def _text_part(text: str, logprobs: list[Answer]) -> Answer:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _earlier_messages(body: Mapping[str, Any], chats: Mapping[str, Messages]) -> Messages:
    """Returns the messages that a request continues."""
    previous_id = body.get("previous_response_id")
    if previous_id is None:
        return []
    if not isinstance(previous_id, str) or previous_id not in chats:
        raise RequestError(
            f"previous_response_id={previous_id!r:.80}: no such response in this session; "
            "without one, send the whole input",
            param="previous_response_id",
        )
    return list(chats[previous_id])


def _read_input(value: Any) -> Messages:
    """Converts the items of a request to messages.

    The calls of a response follow its text as separate items; together they are one message.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise RequestError("input: must be a text or a list of items", param="input")
    messages: Messages = []
    previous_kind = ""
    for index, item in enumerate(value):
        label = f"input[{index}]"
        if not isinstance(item, dict):
            raise RequestError(f"{label}: must be an object", param="input")
        kind = item.get("type") or "message"
        if kind == "reasoning":
            continue
        if kind == "function_call":
            continues = previous_kind == kind or (
                previous_kind == "message" and messages[-1]["role"] == "assistant"
            )
            if not continues:
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_read_call(item))
        elif kind == "function_call_output":
            content = _join_parts(item.get("output"), label)
            result = {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
            messages.append(result)
        elif kind == "message":
            content = _join_parts(item.get("content"), label)
            messages.append({"role": item.get("role"), "content": content})
        else:
            raise RequestError(
                f"{label}: an item of type {kind!r:.40}; only message, function_call and "
                "function_call_output are taken",
                param="input",
            )
        previous_kind = kind
    return messages


def _read_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _join_parts(content: Any, label: str) -> str:
    """Returns the text of a content that is a text or a list of parts."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else (content,):
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str) or part.get("type") not in _TEXT_PARTS:
            raise RequestError(f"{label}: content must be text", param="input")
        texts.append(text)
    return "".join(texts)


def _read_tool(tool: Any, index: int) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise RequestError(
            f"tools[{index}]: must be {{'type': 'function', 'name': ..}}; tools of OpenAI's "
            "servers are not there",
            param="tools",
        )
    names = ("name", "description", "parameters")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}
