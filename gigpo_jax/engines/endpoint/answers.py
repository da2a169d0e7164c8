"""Answers in OpenAI's form for chats and completions: a JSON object, or the events of a stream."""

import functools
import itertools
import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from gigpo_jax.engines.base import Completion, EngineLost
from gigpo_jax.engines.endpoint.requests import PolicyRequest, RequestError
from gigpo_jax.engines.endpoint.tools import openai_calls, read_calls
from gigpo_jax.models.text.token_bytes import TokenBytes
from gigpo_jax.models.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
Answer = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """A response as clients see it.

    Attributes:
      text: Text without stops of the request, and without calls.
      calls: Calls in OpenAI's form.
      finish_reason: "stop", "length" or "tool_calls".
      stop: String of the request that ended the text, or "".
      completion: Response of the engine.
    """

    text: str
    calls: Sequence[Mapping[str, Any]]
    finish_reason: str
    stop: str
    completion: Completion


def read_reply(
    request: PolicyRequest, prompt: Sequence[int], completion: Completion, tokenizer: Tokenizer
) -> Reply:
    """Reads text and calls of a response."""
    sampled_ids = completion.tokens.tolist()
    whole_text = tokenizer.decode(sampled_ids)
    text = cut_text(whole_text, request.cut)
    remainder = whole_text[len(text) :]
    stop = next((stop for stop in request.cut if remainder.startswith(stop)), "")
    content, calls = read_calls(text, request.tools, request.prompt)
    if not (request.chat and calls):
        return Reply(content, (), completion.finish_reason, stop, completion)
    named_calls = openai_calls(calls, repr((prompt, sampled_ids)).encode())
    return Reply(content, named_calls, "tool_calls", "", completion)


def cut_text(text: str, stops: Sequence[str]) -> str:
    """Returns a text up to the first of these strings."""
    positions = [text.find(stop) for stop in stops if stop in text]
    return text[: min(positions, default=len(text))]


def data_event(content: Answer) -> str:
    """Returns a server-sent event without a name."""
    return f"data: {json.dumps(content)}\n\n"


def named_event(content: Answer) -> str:
    """Returns a server-sent event whose name is its type."""
    return f"event: {content['type']}\n{data_event(content)}"


def error_answer(err: Exception) -> RequestError:
    """Converts an exception to the error that a client gets."""
    if isinstance(err, RequestError):
        return err
    if isinstance(err, web.HTTPException):
        return RequestError(err.text or err.reason, status=err.status)
    log.error("a request failed", exc_info=err)  # a fault of the engine or of this program
    status = 503 if isinstance(err, EngineLost) else 500
    return RequestError(f"{type(err).__name__}: {err}", status=status)


class OpenAIForm:
    """The answer to a request of a chat or a completion; see `streams.AnswerForm`.

    Its system_fingerprint is the version of the weights.
    """

    end = "data: [DONE]\n\n"

    def __init__(
        self, request: PolicyRequest, prompt_length: int, model: str, tokenizer: Tokenizer
    ) -> None:
        """Fixes the id, which all events of a stream have.

        Args:
          request: Request.
          prompt_length: Number of tokens of the prompt.
          model: Name of the policy.
          tokenizer: Tokenizer of the responses.
        """
        self.request = request
        self._prompt_length = prompt_length
        self._tokenizer = tokenizer
        self._sent_texts = [""] * request.choices
        prefix = "cmpl"
        kind = "text_completion"
        if request.chat:
            prefix = "chatcmpl"
            kind = "chat.completion.chunk" if request.stream else "chat.completion"
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        self._head: Answer = {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
            "usage": None,
        }

    def answer(self, replies: Sequence[Reply]) -> Answer:
        """Returns the whole answer."""
        choices = []
        for index, reply in enumerate(replies):
            content: Answer = {"text": reply.text}
            if self.request.chat:
                content = {"message": _message(reply)}
            end = {"finish_reason": reply.finish_reason, "logprobs": self._logprobs(reply)}
            choices.append({"index": index, **content, **end})
        return self._complete_head(replies) | {"choices": choices, "usage": self._usage(replies)}

    def text_events(self, index: int, text: str) -> Iterator[str]:
        """Yields the event of some new text of a choice."""
        yield data_event(self._head | self._text_choice(index, text))
        self._sent_texts[index] += text

    def last_events(self, replies: Sequence[Reply]) -> Iterator[str]:
        """Yields the last events of a stream: each choice's unsent text and its end.

        The numbers of tokens follow if they were requested.
        """
        head = self._complete_head(replies)
        for index, reply in enumerate(replies):
            sent_text = self._sent_texts[index]
            text = reply.text[len(sent_text) :]
            # A choice without text has one such event too, which gives the role.
            if text or reply.calls or not sent_text:
                calls = [{"index": number, **call} for number, call in enumerate(reply.calls)]
                fields = {"content": text or None, "tool_calls": calls} if calls else {}
                event = self._text_choice(index, text, **fields)
                event["choices"][0]["logprobs"] = self._logprobs(reply)
                yield data_event(head | event)
            empty_content: Answer = {"delta": {}} if self.request.chat else {"text": ""}
            end = {"index": index, **empty_content, "logprobs": None}
            yield data_event(head | {"choices": [end | {"finish_reason": reply.finish_reason}]})
        if self.request.usage:
            yield data_event(head | {"choices": [], "usage": self._usage(replies)})

    def error_event(self, err: RequestError) -> str:
        """Returns the event of a failure after the first event."""
        return data_event(err.as_json())

    def _complete_head(self, replies: Sequence[Reply]) -> Answer:
        # An update may come between two choices; the answer names the newer weights.
        version = max(reply.completion.version for reply in replies)
        return self._head | {"system_fingerprint": f"weights-{version}"}

    def _text_choice(self, index: int, text: str, **message_fields: Any) -> Answer:
        """Builds the choices of an event with some text."""
        message: Answer = {} if self._sent_texts[index] else {"role": "assistant"}
        message |= {"content": text} | message_fields
        content = {"delta": message} if self.request.chat else {"text": text}
        return {"choices": [{"index": index, **content, "logprobs": None, "finish_reason": None}]}

    def _logprobs(self, reply: Reply) -> Answer | None:
        if not self.request.logprobs:
            return None
        return _choice_logprobs(self.request, self._tokenizer, reply.completion)

    def _usage(self, replies: Sequence[Reply]) -> Answer:
        sampled = sum(len(reply.completion.tokens) for reply in replies)
        return {
            "prompt_tokens": self._prompt_length,
            "completion_tokens": sampled,
            "total_tokens": self._prompt_length + sampled,
        }


def _message(reply: Reply) -> Answer:
    """Returns the message of a choice."""
    if not reply.calls:
        return {"role": "assistant", "content": reply.text}
    return {"role": "assistant", "content": reply.text or None, "tool_calls": reply.calls}


@functools.lru_cache(maxsize=1)  # it reads the table of added tokens
def _read_token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    return TokenBytes(tokenizer.backend)


def describe_logprobs(tokenizer: Tokenizer, completion: Completion) -> list[Answer]:
    """Returns text, bytes and log-probability of each token, as chats have them.

    A special token has its name as text. The bytes are the token's own, also if it holds a part of
    a character.
    """
    token_bytes = _read_token_bytes(tokenizer)
    rows = []
    for token, value in zip(completion.tokens.tolist(), completion.logprobs.tolist(), strict=True):
        own = token_bytes(token)
        text = own.decode(errors="replace")
        rows.append({"token": text, "logprob": value, "bytes": list(own), "top_logprobs": []})
    return rows


def _choice_logprobs(
    request: PolicyRequest, tokenizer: Tokenizer, completion: Completion
) -> Answer:
    """Returns the log-probabilities of a choice in OpenAI's form."""
    rows = describe_logprobs(tokenizer, completion)
    if request.chat:
        return {"content": rows, "refusal": None}
    lengths = [_count_characters(row["bytes"]) for row in rows]
    return {
        "tokens": [row["token"] for row in rows],
        "token_logprobs": [row["logprob"] for row in rows],
        "top_logprobs": None,
        "text_offset": list(itertools.accumulate(lengths[:-1], initial=0)),
    }


def _count_characters(text: Sequence[int]) -> int:
    """Counts the characters that begin in some bytes of UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in text)
