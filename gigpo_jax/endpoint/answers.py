"""Responses as OpenAI writes them: one JSON object, or the chunks of a stream."""

import itertools
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from gigpo_jax.endpoint.requests import Asked
from gigpo_jax.endpoint.tools import openai_calls, read_calls
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.sampling.base import Completion


def content_of(text: str, cut: Sequence[str]) -> str:
    """A response's text up to the first of the strings that ended it on the request's wish."""
    return text[: min((at for stop in cut if (at := text.find(stop)) >= 0), default=len(text))]


def answer(
    asked: Asked, prompt: Sequence[int], completions: Sequence[Completion], tokenizer: Tokenizer, model: str
) -> dict[str, Any]:
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
    return {
        "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{secrets.token_hex(12)}",
        "object": "chat.completion" if asked.chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"weights-{max(completion.version for completion in completions)}",
        "choices": choices,
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": sampled,
            "total_tokens": len(prompt) + sampled,
        },
    }


def chunks(answer: dict[str, Any], *, usage: bool) -> Iterator[dict[str, Any]]:
    """An answer as the events of a stream: each choice whole, then its end, then the numbers of tokens if asked for."""
    chat = answer["object"] == "chat.completion"
    nothing: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    head = answer | {"object": "chat.completion.chunk" if chat else "text_completion", "usage": None}
    for choice in answer["choices"]:
        end = {"index": choice["index"], "logprobs": None, "finish_reason": choice["finish_reason"]}
        first = {"index": choice["index"], "logprobs": choice["logprobs"], "finish_reason": None}
        yield head | {"choices": [first | ({"delta": _delta(choice["message"])} if chat else {"text": choice["text"]})]}
        yield head | {"choices": [end | nothing]}
    if usage:
        yield head | {"choices": [], "usage": answer["usage"]}


def _said(asked: Asked, prompt: Sequence[int], completion: Completion, tokenizer: Tokenizer) -> dict[str, Any]:
    """The text of a choice, or its message."""
    sampled = completion.tokens.tolist()
    content, calls = read_calls(content_of(tokenizer.decode(sampled), asked.cut), asked.tools)
    if not asked.chat:
        return {"text": content}
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if not calls:
        return {"message": message}
    called = {"content": content or None, "tool_calls": openai_calls(calls, repr((prompt, sampled)).encode())}
    return {"message": message | called, "finish_reason": "tool_calls"}


def _delta(message: dict[str, Any]) -> dict[str, Any]:
    """A message as a stream has it: its calls are numbered."""
    calls = [{"index": number} | call for number, call in enumerate(message.get("tool_calls", ()))]
    return message | ({"tool_calls": calls} if calls else {})


def _logprobs(asked: Asked, tokenizer: Tokenizer, completion: Completion) -> dict[str, Any]:
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


async def stream(request: web.Request, made: dict[str, Any], *, usage: bool) -> web.StreamResponse:
    """Sends a complete answer as server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in chunks(made, usage=usage):
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response
