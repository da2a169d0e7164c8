"""Conversations: one chat an episode, in place of a prompt of its own for each step.

The system message has what all steps share, each observation is a user message, and each response
stays as it was sampled, token by token: only new messages are encoded. When a conversation would be
longer than the limit of a prompt, its oldest pairs of message and response are dropped, or the
policy summarises it first, and it goes on from the summary (after MemAgent, arXiv 2507.02259).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gigpo_jax.core.errors import InputError
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


def _request_summary(inputs: PromptInput, /) -> str:
    del inputs
    return (
        "This conversation has become too long and will be removed. Write a summary of it, with "
        "everything that you need to finish the task: what you have found out, what you have "
        "done, and what is left to do. You will then see the task, your summary and the next "
        "observation. Write the summary and nothing else."
    )


def _recall_summary(inputs: PromptInput, /) -> str:
    return f"Your summary of the first {inputs.steps} steps:\n{inputs.summary}\n"


@dataclass(frozen=True)
class Conversation:
    """Templates of the messages of a conversation.

    They see neither history nor first observation: these stand in the conversation.

    Attributes:
      user: Template of the message with an observation.
      system: Template of the system message; "" for none.
      request_summary: Template of the message that asks for a summary. It sees no observation.
      recall_summary: Template of the text before the first observation after a summary.
    """

    user: PromptTemplate
    system: PromptTemplate = _say_nothing
    request_summary: PromptTemplate = _request_summary
    recall_summary: PromptTemplate = _recall_summary

    def __call__(self, inputs: PromptInput, /) -> str:
        """The text of a conversation's start."""
        return "\n".join(filter(None, (self.system(inputs), self.start(inputs))))

    def start(self, inputs: PromptInput, /) -> str:
        """The first user message."""
        summary = self.recall_summary(inputs) if inputs.summary else ""
        return "\n".join(filter(None, (summary, self.user(inputs))))


@dataclass(frozen=True)
class SummaryLimits:
    """Largest numbers of tokens in conversations with summaries.

    Attributes:
      response: Largest number of tokens of a response.
      summary: Largest number of tokens of a summary.
    """

    response: int
    summary: int


def summary_anchor(anchor: str) -> str:
    """Returns the anchor state of a summary, given the anchor of the observation after it.

    It differs from all anchors of observations, so summaries are compared with summaries alone.
    """
    return "summary\n" + anchor


def make_conversation(template: PromptTemplate) -> Conversation:
    """Makes a conversation from a template of prompts.

    A template with the methods `system` and `user` says which text all steps share. Any other one
    becomes the user message of each step, without history. The methods `request_summary` and
    `recall_summary` may be missing.
    """
    if isinstance(template, Conversation):
        return template
    user = getattr(template, "user", None)
    system = getattr(template, "system", None)
    if user is None or system is None:
        return Conversation(template)
    names = ("request_summary", "recall_summary")
    methods = {name: getattr(template, name) for name in names if hasattr(template, name)}
    return Conversation(user, system, **methods)


def build_step_prompt(
    template: PromptTemplate,
    observation: Observation,
    history: History,
    *,
    encode: Callable[..., Sequence[int]],
    limit: int,
    show_admissible: bool = True,
    template_images: Sequence[np.ndarray] = (),
    summaries: SummaryLimits | None = None,
) -> Prompt:
    """Builds the prompt of a step or a summary.

    A template that is no `Conversation` is for `build_prompt`. A conversation goes on from
    `history.exchanges`. If it would have more than `limit` tokens, the oldest exchanges are dropped
    until half of `limit` is enough for the rest, or all of them; the system message stays. The
    first message that is left is then cut as in `build_prompt`.

    With `summaries` nothing is dropped. A prompt always leaves room for a response and a request
    for a summary after it. Where the next message does not, the request takes its place, and the
    prompt after that starts from `history.summary`.

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
      summaries: Limits of a conversation with summaries; None: the oldest exchanges are dropped.

    Raises:
      InputError: As `build_prompt`, or the chat template cannot continue a conversation.
      NoSummaryRoom: `limit` is too small for summaries of this task.
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


class NoSummaryRoom(InputError):
    """A task leaves no room for observations beside summaries."""


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
