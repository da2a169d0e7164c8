"""Answers in OpenAI's form: one JSON object, or the events of a stream."""

import asyncio
import itertools
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from aiohttp import web

from gigpo_jax.engines.base import Completion, EngineLost, OnTokens
from gigpo_jax.engines.endpoint.requests import PolicyRequest, RequestError
from gigpo_jax.engines.endpoint.tools import START, openai_calls, read_calls
from gigpo_jax.engines.endpoint.xml_calls import FUNCTION
from gigpo_jax.models.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
Answer = dict[str, Any]


def cut_text(text: str, stops: Sequence[str]) -> str:
    """Returns a text up to the first of these strings."""
    positions = [text.find(stop) for stop in stops if stop in text]
    return text[: min(positions, default=len(text))]


def build_answer(
    request: PolicyRequest,
    prompt: Sequence[int],
    completions: Sequence[Completion],
    tokenizer: Tokenizer,
    model: str,
) -> Answer:
    """Builds the answer to a request.

    Its system_fingerprint is the version of the weights.
    """
    choices = []
    for index, completion in enumerate(completions):
        choice = {
            "index": index,
            "finish_reason": completion.finish_reason,
            **_choice_content(request, prompt, completion, tokenizer),
            "logprobs": None,
        }
        if request.logprobs:
            choice["logprobs"] = _choice_logprobs(request, tokenizer, completion)
        choices.append(choice)
    completion_tokens = sum(len(completion.tokens) for completion in completions)
    # An update may come between two choices; the answer names the newer weights.
    version = max(completion.version for completion in completions)
    return _answer_head(request, model) | {
        "system_fingerprint": f"weights-{version}",
        "choices": choices,
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": completion_tokens,
            "total_tokens": len(prompt) + completion_tokens,
        },
    }


def error_answer(err: Exception) -> RequestError:
    """Converts an exception to the error that a client gets."""
    if isinstance(err, RequestError):
        return err
    if isinstance(err, web.HTTPException):
        return RequestError(err.text or err.reason, status=err.status)
    log.error("a request failed", exc_info=err)  # a fault of the engine or of this program
    status = 503 if isinstance(err, EngineLost) else 500
    return RequestError(f"{type(err).__name__}: {err}", status=status)


async def stream_answer(
    http_request: web.Request,
    request: PolicyRequest,
    tokenizer: Tokenizer,
    model: str,
    respond: Callable[[Sequence[OnTokens | None]], Awaitable[Answer]],
) -> web.StreamResponse:
    """Sends an answer as server-sent events.

    Text is sent while it is sampled, the remainder at the end.

    Args:
      http_request: Request that gets the events.
      request: Content of that request.
      tokenizer: Tokenizer of the responses.
      model: Name of the policy.
      respond: Function of a token listener for each choice; returns the answer.

    Raises:
      Exception: An error of `respond` before the first event; a later one is sent as an event.
    """
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    unsent_tokens: dict[int, list[int]] = {}  # choice -> its newest tokens
    has_news = asyncio.Event()

    def listener(index: int) -> OnTokens:
        def store_tokens(tokens: list[int]) -> None:
            unsent_tokens[index] = tokens
            has_news.set()

        return store_tokens

    async def send(event: str) -> None:
        if not response.prepared:
            await response.prepare(http_request)
        await response.write(f"data: {event}\n\n".encode())

    # Log-probabilities come with their text, at the end.
    listeners: list[OnTokens | None] = [None] * request.choices
    if not request.logprobs:
        listeners = [listener(index) for index in range(request.choices)]
    answer = asyncio.ensure_future(respond(listeners))
    answer.add_done_callback(lambda _: has_news.set())
    head = _answer_head(request, model)
    sent_texts = [""] * request.choices
    try:
        while not answer.done():
            # Ends in any case: the end of `answer` sets the event, whether it succeeds or fails.
            await has_news.wait()
            has_news.clear()
            # Only the newest tokens of a choice: a slow client skips events, none are queued.
            while unsent_tokens:
                index = next(iter(unsent_tokens))
                text = _final_text(request, tokenizer.decode(unsent_tokens.pop(index)))
                sent_text = sent_texts[index]
                # No event while all new text is held back, such as the beginning of a stop.
                if len(text) > len(sent_text):
                    new_text = text[len(sent_text) :]
                    event = _text_event(request, index, new_text, is_first=not sent_text)
                    await send(json.dumps(head | event))
                    sent_texts[index] = text
        # All events of a stream have one id.
        complete = answer.result() | {"id": head["id"], "created": head["created"]}
        for event in _last_events(request, complete, sent_texts):
            await send(json.dumps(event))
    except Exception as err:
        # Before the first event the answer can still have the status of the error. After it, status
        # 200 is sent, and the error can only be an event.
        if not response.prepared or isinstance(err, ConnectionError):
            raise
        await send(json.dumps(error_answer(err).as_json()))
    finally:
        # Frees the slot if the client closed the stream; a finished answer stays as it is.
        answer.cancel()
    await send("[DONE]")
    return response


def _answer_head(request: PolicyRequest, model: str) -> Answer:
    """Returns the fields of an answer fixed before sampling."""
    prefix = "cmpl"
    kind = "text_completion"
    if request.chat:
        prefix = "chatcmpl"
        kind = "chat.completion.chunk" if request.stream else "chat.completion"
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
        "usage": None,
    }


def _final_text(request: PolicyRequest, text: str) -> str:
    """Returns the final part of an unfinished response's text.

    No later token can change it.
    """
    ends = request.cut
    if request.tools:
        ends = (*ends, START, FUNCTION)
    # The replacement character at the end may be the first half of a character.
    text = cut_text(text.rstrip("\ufffd"), ends)
    text = text[: len(text) - _longest_partial_end(text, ends)]
    if not request.tools:
        return text
    # The whole response may be a call, and white space before a call is left out.
    if text.lstrip().startswith("{"):
        return ""
    return text.rstrip()


def _longest_partial_end(text: str, ends: Sequence[str]) -> int:
    """Returns the length of the text's longest partial end.

    A partial end is the beginning of a string of `ends` that ends the text.
    """
    longest = 0
    for end in ends:
        for length in range(1, len(end)):
            if text.endswith(end[:length]):
                longest = max(longest, length)
    return longest


def _text_event(
    request: PolicyRequest, index: int, text: str, *, is_first: bool, **message_fields: Any
) -> Answer:
    """Builds the choices of an event with some text."""
    message: Answer = {"role": "assistant"} if is_first else {}
    message |= {"content": text} | message_fields
    content = {"delta": message} if request.chat else {"text": text}
    return {"choices": [{"index": index, **content, "logprobs": None, "finish_reason": None}]}


def _last_events(
    request: PolicyRequest, answer: Answer, sent_texts: Sequence[str]
) -> Iterator[Answer]:
    """Yields the last events of a streamed answer.

    Those are each choice's unsent text and its end, then the numbers of tokens if requested.
    """
    head = answer | {"usage": None}
    for choice, sent_text in zip(answer["choices"], sent_texts, strict=True):
        message = choice["message"] if request.chat else {"content": choice["text"]}
        calls = []
        for number, call in enumerate(message.get("tool_calls", ())):
            calls.append({"index": number} | call)
        text = (message["content"] or "")[len(sent_text) :]
        # A choice without text has one such event too, which gives the role.
        if text or calls or not sent_text:
            fields = {"content": text or None, "tool_calls": calls} if calls else {}
            event = _text_event(request, choice["index"], text, is_first=not sent_text, **fields)
            event["choices"][0]["logprobs"] = choice["logprobs"]
            yield head | event
        empty_content: Answer = {"delta": {}} if request.chat else {"text": ""}
        end = {
            "index": choice["index"],
            **empty_content,
            "logprobs": None,
            "finish_reason": choice["finish_reason"],
        }
        yield head | {"choices": [end]}
    if request.usage:
        yield head | {"choices": [], "usage": answer["usage"]}


def _choice_content(
    request: PolicyRequest, prompt: Sequence[int], completion: Completion, tokenizer: Tokenizer
) -> Answer:
    """Returns the text of a choice, or its message."""
    sampled_ids = completion.tokens.tolist()
    text = cut_text(tokenizer.decode(sampled_ids), request.cut)
    content, calls = read_calls(text, request.tools, request.prompt)
    if not request.chat:
        return {"text": content}
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if not calls:
        return {"message": message}
    message["content"] = content or None
    message["tool_calls"] = openai_calls(calls, repr((prompt, sampled_ids)).encode())
    return {"message": message, "finish_reason": "tool_calls"}


def _choice_logprobs(
    request: PolicyRequest, tokenizer: Tokenizer, completion: Completion
) -> Answer:
    """Returns text and log-probability of each token, in OpenAI's form.

    A special token has its name as text.
    """
    texts = []
    for token in completion.tokens.tolist():
        texts.append(tokenizer.decode([token]) or tokenizer.token(token) or "")
    values = completion.logprobs.tolist()
    if not request.chat:
        offsets = list(itertools.accumulate(map(len, texts[:-1]), initial=0))
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": None,
            "text_offset": offsets,
        }
    rows = []
    for text, value in zip(texts, values, strict=True):
        rows.append(
            {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
        )
    return {"content": rows, "refusal": None}
