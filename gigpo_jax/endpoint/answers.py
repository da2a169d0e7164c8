"""Responses as OpenAI writes them: one JSON object, or the chunks of a stream."""

import asyncio
import itertools
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from aiohttp import web

from gigpo_jax.endpoint.requests import Asked, Refused
from gigpo_jax.endpoint.tools import START, openai_calls, read_calls
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.sampling.base import Completion, EngineLost, OnTokens

log = logging.getLogger(__name__)
Answer = dict[str, Any]


def content_of(text: str, cut: Sequence[str]) -> str:
    """A response's text up to the first of the strings that ended it on the request's wish."""
    return text[: min((at for stop in cut if (at := text.find(stop)) >= 0), default=len(text))]


def _head(asked: Asked, model: str) -> Answer:
    """An answer before it is sampled."""
    return {
        "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{secrets.token_hex(12)}",
        "object": f"chat.completion{'.chunk' if asked.stream else ''}" if asked.chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
        "usage": None,
    }


def answer(
    asked: Asked, prompt: Sequence[int], completions: Sequence[Completion], tokenizer: Tokenizer, model: str
) -> Answer:
    """The answer to a request, with the version of the weights as its system_fingerprint."""
    choices = [
        {
            "index": index,
            "finish_reason": completion.finish_reason,
            **_said(asked, prompt, completion, tokenizer),
            "logprobs": _logprobs(asked, tokenizer, completion) if asked.logprobs else None,
        }
        for index, completion in enumerate(completions)
    ]
    sampled = sum(len(completion.tokens) for completion in completions)
    return _head(asked, model) | {
        "system_fingerprint": f"weights-{max(completion.version for completion in completions)}",
        "choices": choices,
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": sampled,
            "total_tokens": len(prompt) + sampled,
        },
    }


def error_of(err: Exception) -> Refused:
    """What a client gets for an exception."""
    if isinstance(err, Refused):
        return err
    if isinstance(err, web.HTTPException):
        return Refused(err.text or err.reason, status=err.status)
    log.error("a request failed", exc_info=err)  # a fault of the engine or of this program
    return Refused(f"{type(err).__name__}: {err}", status=503 if isinstance(err, EngineLost) else 500)


async def stream(
    request: web.Request,
    asked: Asked,
    tokenizer: Tokenizer,
    model: str,
    respond: Callable[[Sequence[OnTokens | None]], Awaitable[Answer]],
) -> web.StreamResponse:
    """Sends an answer as server-sent events: text while it is sampled, then what is left of the answer.

    Args:
      request: gets the events.
      asked: what it asks for.
      tokenizer: of the responses.
      model: its name.
      respond: (a function for the tokens of each choice) -> the answer.

    Raises:
      Exception: as `respond`, if it fails before the first event; later the failure is an event.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    newest: dict[int, list[int]] = {}  # tokens of choices that were not looked at yet
    news = asyncio.Event()

    def listener(index: int) -> OnTokens:
        def hear(tokens: list[int]) -> None:
            newest[index] = tokens
            news.set()

        return hear

    async def send(event: Any) -> None:
        if not response.prepared:
            await response.prepare(request)
        await response.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())

    # Log-probabilities come with their text, at the end.
    listeners = [None if asked.logprobs else listener(index) for index in range(asked.choices)]
    work = asyncio.ensure_future(respond(listeners))
    work.add_done_callback(lambda _: news.set())
    head, sent = _head(asked, model), [""] * asked.choices
    try:
        while not work.done():
            await news.wait()
            news.clear()
            while newest:
                index = next(iter(newest))
                text = _certain(asked, tokenizer.decode(newest.pop(index)))
                if len(text) > len(sent[index]):
                    await send(head | _chunk(asked, index, text[len(sent[index]) :], first=not sent[index]))
                    sent[index] = text
        for event in _rest(asked, work.result() | {name: head[name] for name in ("id", "created")}, sent):
            await send(event)
    except Exception as err:
        if not response.prepared or isinstance(err, ConnectionError):
            raise
        await send(error_of(err).as_json())
    finally:
        work.cancel()
    await send("[DONE]")
    return response


def _certain(asked: Asked, text: str) -> str:
    """The part of an unfinished response's text that its answer begins with, whatever comes next."""
    ends = (*asked.cut, *((START,) if asked.tools else ()))
    text = content_of(text.rstrip("\ufffd"), ends)  # half of a character
    begun = (length for end in ends for length in range(1, len(end)) if text.endswith(end[:length]))
    text = text[: len(text) - max(begun, default=0)]
    if asked.tools:  # the whole response may be a call, and white space before one is left out
        return "" if text.lstrip().startswith("{") else text.rstrip()
    return text


def _chunk(asked: Asked, index: int, text: str, *, first: bool, **more: Any) -> Answer:
    """The choices of an event with some text; `more` are fields of the message."""
    message = ({"role": "assistant"} if first else {}) | {"content": text} | more
    said = {"delta": message} if asked.chat else {"text": text}
    return {"choices": [{"index": index, **said, "logprobs": None, "finish_reason": None}]}


def _rest(asked: Asked, made: Answer, sent: Sequence[str]) -> Iterator[Answer]:
    """The last events: of each choice what was not sent and its end, then the numbers of tokens if asked for."""
    head = made | {"usage": None}
    for choice, before in zip(made["choices"], sent, strict=True):
        message = choice["message"] if asked.chat else {"content": choice["text"]}
        calls = [{"index": number} | call for number, call in enumerate(message.get("tool_calls", ()))]
        text = (message["content"] or "")[len(before) :]
        if text or calls or not before:
            more = {"content": text or None, "tool_calls": calls} if calls else {}
            event = _chunk(asked, choice["index"], text, first=not before, **more)
            event["choices"][0]["logprobs"] = choice["logprobs"]
            yield head | event
        nothing: Answer = {"delta": {}} if asked.chat else {"text": ""}
        end = {"index": choice["index"], **nothing, "logprobs": None, "finish_reason": choice["finish_reason"]}
        yield head | {"choices": [end]}
    if asked.usage:
        yield head | {"choices": [], "usage": made["usage"]}


def _said(asked: Asked, prompt: Sequence[int], completion: Completion, tokenizer: Tokenizer) -> Answer:
    """The text of a choice, or its message."""
    sampled = completion.tokens.tolist()
    content, calls = read_calls(content_of(tokenizer.decode(sampled), asked.cut), asked.tools, asked.prompt)
    if not asked.chat:
        return {"text": content}
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if not calls:
        return {"message": message}
    called = {"content": content or None, "tool_calls": openai_calls(calls, repr((prompt, sampled)).encode())}
    return {"message": message | called, "finish_reason": "tool_calls"}


def _logprobs(asked: Asked, tokenizer: Tokenizer, completion: Completion) -> Answer:
    """Each token's text, or its name if it is a special one, and its log-probability; there are none of others."""
    texts = [tokenizer.decode([token]) or tokenizer.token(token) or "" for token in completion.tokens.tolist()]
    values = completion.logprobs.tolist()
    if not asked.chat:
        offsets = list(itertools.accumulate(map(len, texts[:-1]), initial=0))
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
    rows = [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
        for text, value in zip(texts, values, strict=True)
    ]
    return {"content": rows, "refusal": None}
