"""Answers as server-sent events."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from aiohttp import web

from gigpo_jax.engines.base import OnTokens
from gigpo_jax.engines.endpoint.answers import Answer, Reply, cut_text, error_answer
from gigpo_jax.engines.endpoint.requests import PolicyRequest, RequestError
from gigpo_jax.engines.endpoint.tools import START
from gigpo_jax.engines.endpoint.xml_calls import FUNCTION
from gigpo_jax.models.text.tokenizer import Tokenizer

Respond = Callable[[Sequence[OnTokens | None]], Awaitable[list[Reply]]]


class AnswerForm(Protocol):
    """The answer to one request, in the form of an interface.

    Attributes:
      request: The request.
      id: Name of the answer.
      end: What follows the last event.
    """

    request: PolicyRequest
    id: str
    end: str

    def answer(self, replies: Sequence[Reply]) -> Answer:
        """Returns the whole answer."""

    def text_events(self, index: int, text: str) -> Iterator[str]:
        """Yields the events of some new text of a choice."""

    def last_events(self, replies: Sequence[Reply]) -> Iterator[str]:
        """Yields the events of the unsent text, the calls and the end."""

    def error_event(self, err: RequestError) -> str:
        """Returns the event of a failure after the first event."""


async def stream_answer(
    http_request: web.Request, form: AnswerForm, tokenizer: Tokenizer, respond: Respond
) -> web.StreamResponse:
    """Sends an answer as server-sent events: text while it is sampled, the remainder at the end.

    Args:
      http_request: Request that gets the events.
      form: Form of the events.
      tokenizer: Tokenizer of the responses.
      respond: Function of a token listener for each choice; returns the replies.

    Raises:
      Exception: An error of `respond` before the first event; a later one is sent as an event.
    """
    request = form.request
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
        await response.write(event.encode())

    # Log-probabilities come with their text, at the end.
    listeners: list[OnTokens | None] = [None] * request.choices
    if not request.logprobs:
        listeners = [listener(index) for index in range(request.choices)]
    replies = asyncio.ensure_future(respond(listeners))
    replies.add_done_callback(lambda _: has_news.set())
    sent_lengths = [0] * request.choices
    try:
        while not replies.done():
            # Ends in any case: the end of `replies` sets the event, whether it succeeds or fails.
            await has_news.wait()
            has_news.clear()
            # Only the newest tokens of a choice: a slow client skips events, none are queued.
            while unsent_tokens:
                index = next(iter(unsent_tokens))
                text = _final_text(request, tokenizer.decode(unsent_tokens.pop(index)))
                # No event while all new text is held back, such as the beginning of a stop.
                if len(text) > sent_lengths[index]:
                    for event in form.text_events(index, text[sent_lengths[index] :]):
                        await send(event)
                    sent_lengths[index] = len(text)
        for event in form.last_events(replies.result()):
            await send(event)
    except Exception as err:
        # Before the first event the answer can still have the status of the error. After it, status
        # 200 is sent, and the error can only be an event.
        if not response.prepared or isinstance(err, ConnectionError):
            raise
        await send(form.error_event(error_answer(err)))
    finally:
        # Frees the slot if the client closed the stream; a finished answer stays as it is.
        replies.cancel()
    await send(form.end)
    return response


def _final_text(request: PolicyRequest, text: str) -> str:
    """Returns the part of an unfinished response's text that no later token can change."""
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
    """Returns the length of the longest beginning of a string of `ends` that ends the text."""
    longest = 0
    for end in ends:
        for length in range(1, len(end)):
            if text.endswith(end[:length]):
                longest = max(longest, length)
    return longest
