"""Conversations: one chat an episode, in place of a prompt of its own for each step.

The system message has what all steps share, each observation is a user message, and each response
stays as it was sampled, token by token: only new messages are encoded. When a conversation would be
longer than the limit of a prompt, its oldest pairs of message and response are dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gigpo_jax.env_bridge.prompts import (
    LONGEST_TOKEN,
    Exchange,
    History,
    Prompt,
    PromptInput,
    PromptTemplate,
    build_prompt,
    collect_images,
    fit_prompt,
    read_inputs,
)
from gigpo_jax.env_bridge.types import Observation

CHAT = "chat"  # style of prompts
# After the oldest pairs are dropped, at most limit / _FREED_SHARE tokens stay. With a limit that is
# just met, every step would drop a pair, and no prompt would continue the one before.
_FREED_SHARE = 2


def _say_nothing(inputs: PromptInput, /) -> str:
    del inputs
    return ""


@dataclass(frozen=True)
class Conversation:
    """Templates of the messages of a conversation.

    They see neither history nor first observation: these stand in the conversation.

    Attributes:
      user: Template of the message with an observation.
      system: Template of the system message; "" for none.
    """

    user: PromptTemplate
    system: PromptTemplate = _say_nothing

    def __call__(self, inputs: PromptInput, /) -> str:
        """The text of a conversation's start."""
        return "\n".join(filter(None, (self.system(inputs), self.user(inputs))))


def make_conversation(template: PromptTemplate) -> Conversation:
    """Makes a conversation from a template of prompts.

    A template with the methods `system` and `user` says which text all steps share. Any other one
    becomes the user message of each step, without history.
    """
    if isinstance(template, Conversation):
        return template
    user = getattr(template, "user", None)
    system = getattr(template, "system", None)
    if user is None or system is None:
        return Conversation(template)
    return Conversation(user, system)


def build_step_prompt(
    template: PromptTemplate,
    observation: Observation,
    history: History,
    *,
    encode: Callable[..., Sequence[int]],
    limit: int,
    show_admissible: bool = True,
    template_images: Sequence[np.ndarray] = (),
) -> Prompt:
    """Builds the prompt of a step.

    A template that is no `Conversation` is for `build_prompt`. A conversation goes on from
    `history.exchanges`. If it would have more than `limit` tokens, the oldest exchanges are dropped
    until half of `limit` is enough for the rest, or all of them; the system message stays. The
    first message that is left is then cut as in `build_prompt`.

    Args:
      template: See `build_prompt`.
      observation: See `build_prompt`.
      history: See `build_prompt`.
      encode: See `build_prompt`. For a conversation it takes two more arguments: `system`, text of
        a system message before the user message, or `response`, ids of the response that the user
        message follows; then it returns the ids after the response.
      limit: See `build_prompt`.
      show_admissible: See `build_prompt`.
      template_images: See `build_prompt`.

    Raises:
      InputError: As `build_prompt`, or the chat template cannot continue a conversation.
    """
    if not isinstance(template, Conversation):
        return build_prompt(
            template,
            observation,
            history,
            encode=encode,
            limit=limit,
            show_admissible=show_admissible,
            template_images=template_images,
        )
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

    # A text of a megabyte is not encoded.
    if history.exchanges and len(text) <= limit * LONGEST_TOKEN:
        response = history.exchanges[-1].response
        tokens = tuple(encode(text, images, response=response))
        exchanges = (*history.exchanges, Exchange(text, images, tokens=tokens))
        if _count_tokens(exchanges) > limit:
            exchanges = _drop_oldest(exchanges, start, limit // _FREED_SHARE)
        if exchanges:
            # Fewer exchanges than actions: the oldest ones are not shown any more.
            cut = "history" if len(exchanges) <= history.steps else ""
            return _join_exchanges(exchanges, text, cut)

    def encode_start(user_text: str) -> Sequence[int]:
        user_text, user_images = collect_images(user_text, reader.images)
        return start(Exchange(user_text, user_images)).tokens

    fitted = fit_prompt(
        template.user, inputs, encode=encode_start, limit=limit, keep_observation=has_images
    )
    text, images = collect_images(fitted.text, reader.images)
    first = Exchange(text, images, system, system_images, tuple(fitted.tokens))
    cut = "history" if history.steps and not fitted.cut else fitted.cut
    return _join_exchanges((first,), "\n".join(filter(None, (system, text))), cut)


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
