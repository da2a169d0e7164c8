"""Prompts of conversations, which go on from the exchanges of an episode."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gigpo_jax.env_bridge.conversations import Conversation, NoSummaryRoom, SummaryLimits
from gigpo_jax.env_bridge.prompts import (
    LONGEST_TOKEN,
    Exchange,
    History,
    Prompt,
    collect_images,
    fit_prompt,
    read_inputs,
)
from gigpo_jax.env_bridge.types import Observation

# After the oldest pairs are dropped, at most limit / _FREED_SHARE tokens stay. With a limit that is
# just met, every step would drop a pair, and no prompt would continue the one before.
_FREED_SHARE = 2


def build_conversation_prompt(
    template: Conversation,
    observation: Observation,
    history: History,
    *,
    encode: Callable[..., Sequence[int]],
    limit: int,
    show_admissible: bool,
    template_images: Sequence[np.ndarray],
    summaries: SummaryLimits | None,
) -> Prompt:
    """Builds the prompt of a step or a summary; see `step_prompts.build_step_prompt`."""
    inputs, reader = read_inputs(
        observation, history, show_admissible=show_admissible, template_images=template_images
    )
    inputs = replace(inputs, first="", history=())
    system, system_images = collect_images(template.system(inputs), reader.images)
    text, images = collect_images(template.user(inputs), reader.images)
    has_images = reader.has_images or any(pair.images for pair in history.exchanges)

    def start(exchange: Exchange) -> Exchange:
        """The exchange as the first of a conversation."""
        tokens = encode(exchange.text, (*system_images, *exchange.images), system=system)
        return replace(exchange, system=system, system_images=system_images, tokens=tuple(tokens))

    def encode_start(user_text: str) -> Sequence[int]:
        user_text, user_images = collect_images(user_text, reader.images)
        return start(Exchange(user_text, user_images)).tokens

    step_limit = limit
    request = ""
    if summaries is not None:
        bare_inputs = replace(inputs, observation="", admissible=None)
        request = template.request_summary(bare_inputs)
        # The longest one: after a response without an end.
        request_tokens = len(encode(request, (), response=()))
        step_limit -= summaries.response + request_tokens
        if not history.steps:
            start_inputs = inputs if has_images else bare_inputs
            start_tokens = len(encode_start(template.user(start_inputs)))
            _check_summary_room(start_tokens + summaries.summary, step_limit, limit)

    # A text of a megabyte is not encoded.
    if history.exchanges and len(text) <= limit * LONGEST_TOKEN:
        response = history.exchanges[-1].response
        tokens = tuple(encode(text, images, response=response))
        exchanges = (*history.exchanges, Exchange(text, images, tokens=tokens))
        if _count_tokens(exchanges) > step_limit:
            dropped_limit = limit // _FREED_SHARE
            exchanges = () if summaries else _drop_oldest(exchanges, start, dropped_limit)
        if exchanges:
            # Fewer exchanges than actions: the oldest ones are not shown any more.
            is_cut = summaries is None and len(exchanges) <= history.steps
            return _join_exchanges(exchanges, text, "history" if is_cut else "")
    if history.exchanges and summaries is not None:
        response = history.exchanges[-1].response
        tokens = tuple(encode(request, (), response=response))
        exchanges = (*history.exchanges, Exchange(request, tokens=tokens))
        return replace(_join_exchanges(exchanges, request, ""), asks_summary=True)

    fitted = fit_prompt(
        template.start, inputs, encode=encode_start, limit=step_limit, keep_observation=has_images
    )
    text, images = collect_images(fitted.text, reader.images)
    first = Exchange(text, images, system, system_images, tuple(fitted.tokens))
    cut = fitted.cut
    if history.steps and summaries is None:
        cut = cut or "history"
    return _join_exchanges((first,), "\n".join(filter(None, (system, text))), cut)


def _check_summary_room(start_tokens: int, step_limit: int, limit: int) -> None:
    """Checks that an observation has room after a summary.

    Args:
      start_tokens: Number of tokens of system message, empty first message and summary.
      step_limit: Largest number of tokens of a step's prompt.
      limit: Largest number of tokens of any prompt.

    Raises:
      NoSummaryRoom: It has none.
    """
    if start_tokens >= step_limit:
        raise NoSummaryRoom(
            f"task, summary, response and the next request for a summary take "
            f"{start_tokens + limit - step_limit} tokens before anything is observed",
            key="config.sampling.max_prompt_tokens",
            value=limit,
            fix="use more, smaller sampling.max_response_tokens and sampling.max_summary_tokens, "
            "or env.context=drop_oldest",
        )


def _count_tokens(exchanges: Sequence[Exchange]) -> int:
    return sum(len(pair.tokens) + len(pair.response) for pair in exchanges)


def _drop_oldest(
    exchanges: tuple[Exchange, ...], start: Callable[[Exchange], Exchange], limit: int
) -> tuple[Exchange, ...]:
    """Returns the newest exchanges that fit, or none.

    Args:
      exchanges: Conversation that is too long; its last exchange has no response yet.
      start: Function that makes an exchange the first one of a conversation.
      limit: Largest number of tokens.
    """
    for first in range(1, len(exchanges) - 1):
        newest = exchanges[first:]
        # Nothing is encoded for what is too long in any case.
        if _count_tokens(newest) > limit:
            continue
        newest = (start(newest[0]), *newest[1:])
        if _count_tokens(newest) <= limit:
            return newest
    return ()


def _join_exchanges(exchanges: tuple[Exchange, ...], text: str, cut: str) -> Prompt:
    tokens: list[int] = []
    for pair in exchanges:
        tokens += (*pair.tokens, *pair.response)
    images: tuple[np.ndarray, ...] = ()
    for pair in exchanges:
        images += (*pair.system_images, *pair.images)
    return Prompt(text, tokens, cut, images, exchanges)
