"""Conversations: one chat an episode, in place of a prompt of its own for each step.

The system message has what all steps share, each observation is a user message, and each response
stays as it was sampled, token by token: only new messages are encoded. When a conversation would be
longer than the limit of a prompt, its oldest pairs of message and response are dropped, or the
policy summarises it first, and it goes on from the summary (after MemAgent, arXiv 2507.02259).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gigpo_jax.env_bridge.exchanges import Exchange
from gigpo_jax.env_bridge.prompt_building import (
    LONGEST_TOKEN,
    NoSummaryRoom,
    fit_prompt,
    read_inputs,
)
from gigpo_jax.env_bridge.prompts import History, Prompt, PromptInput, PromptTemplate
from gigpo_jax.env_bridge.text_reader import TextReader
from gigpo_jax.env_bridge.types import Observation

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
class SummaryLimits:
    """Largest numbers of tokens in conversations with summaries.

    Attributes:
      response: Largest number of tokens of a response.
      summary: Largest number of tokens of a summary.
    """

    response: int
    summary: int


@dataclass(frozen=True)
class Conversation:
    """Templates of the messages of a conversation.

    They see neither history nor first observation: these stand in the conversation.

    Attributes:
      user: Template of the message with an observation.
      system: Template of the system message; "" for none.
      request_summary: Template of the message that asks for a summary. It sees no observation.
      recall_summary: Template of the text before the first observation after a summary.
      summaries: Limits of a conversation with summaries; None: the oldest exchanges are dropped.
    """

    user: PromptTemplate
    system: PromptTemplate = _say_nothing
    request_summary: PromptTemplate = _request_summary
    recall_summary: PromptTemplate = _recall_summary
    summaries: SummaryLimits | None = None

    def __call__(self, inputs: PromptInput, /) -> str:
        """The text of a conversation's start."""
        return "\n".join(filter(None, (self.system(inputs), self.start(inputs))))

    def start(self, inputs: PromptInput, /) -> str:
        """The first user message."""
        summary = self.recall_summary(inputs) if inputs.summary else ""
        return "\n".join(filter(None, (summary, self.user(inputs))))

    def build_prompt(
        self,
        observation: Observation,
        history: History,
        encode: Callable[..., Sequence[int]],
        limit: int,
        show_admissible: bool,
        template_images: Sequence[np.ndarray],
    ) -> Prompt:
        """Builds the prompt of a step or a summary; arguments: `prompt_building.build_prompt`.

        It goes on from `history.exchanges`. If it would have more than `limit` tokens, the oldest
        exchanges are dropped until half of `limit` is enough for the rest, or all of them; the
        system message stays. The first message that is left is then cut as in `build_prompt`.

        With `summaries` nothing is dropped. A prompt always leaves room for a response and a
        request for a summary after it. Where the next message does not, the request takes its
        place, and the prompt after that starts from `history.summary`.

        Raises:
          NoSummaryRoom: `limit` is too small for summaries of this task.
        """
        summaries = self.summaries
        inputs, reader = read_inputs(observation, history, show_admissible, template_images)
        inputs = replace(inputs, first="", history=())
        beginning = _Beginning(*reader.collect_images(self.system(inputs)), reader, encode)
        text, images = reader.collect_images(self.user(inputs))
        has_images = reader.has_images or any(pair.images for pair in history.exchanges)

        step_limit = limit
        request = ""
        if summaries is not None:
            bare_inputs = replace(inputs, observation="", admissible=None)
            request = self.request_summary(bare_inputs)
            # The longest one: after a response without an end.
            request_tokens = len(encode(request, (), response=()))
            step_limit -= summaries.response + request_tokens
            if not history.steps:
                start_inputs = inputs if has_images else bare_inputs
                start_tokens = len(beginning.encode_text(self.user(start_inputs)))
                _check_summary_room(start_tokens + summaries.summary, step_limit, limit)

        # A text of a megabyte is not encoded.
        if history.exchanges and len(text) <= limit * LONGEST_TOKEN:
            exchanges = _append_message(history.exchanges, text, images, encode)
            if _count_tokens(exchanges) > step_limit:
                exchanges = () if summaries else _drop_oldest(exchanges, beginning, limit)
            if exchanges:
                # Fewer exchanges than actions: the oldest ones are not shown any more.
                is_cut = summaries is None and len(exchanges) <= history.steps
                return _join_exchanges(exchanges, text, "history" if is_cut else "")
        if history.exchanges and summaries is not None:
            exchanges = _append_message(history.exchanges, request, (), encode)
            return replace(_join_exchanges(exchanges, request, ""), asks_summary=True)

        fitted = fit_prompt(
            self.start,
            inputs,
            encode=beginning.encode_text,
            limit=step_limit,
            keep_observation=has_images,
        )
        first = replace(beginning.read_exchange(fitted.text), tokens=tuple(fitted.tokens))
        cut = fitted.cut
        if history.steps and summaries is None:
            cut = cut or "history"
        return _join_exchanges((first,), "\n".join(filter(None, (first.system, first.text))), cut)


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


@dataclass(frozen=True)
class _Beginning:
    """The beginning of a conversation: a system message, and the first user message behind it.

    Attributes:
      system: Text of the system message.
      system_images: Images of the system message.
      reader: Reader of all texts, which has their images.
      encode: See `prompt_building.build_prompt`.
    """

    system: str
    system_images: tuple[np.ndarray, ...]
    reader: TextReader
    encode: Callable[..., Sequence[int]]

    def read_exchange(self, user_text: str) -> Exchange:
        """Makes the first exchange of a user message with numbered marks; it has no tokens yet."""
        text, images = self.reader.collect_images(user_text)
        return Exchange(text, images, self.system, self.system_images)

    def encode_text(self, user_text: str) -> Sequence[int]:
        """Returns the ids of a conversation's start, given a user message with numbered marks."""
        return self.begin_with(self.read_exchange(user_text)).tokens

    def begin_with(self, exchange: Exchange) -> Exchange:
        """Makes an exchange the first one of a conversation."""
        images = (*self.system_images, *exchange.images)
        tokens = self.encode(exchange.text, images, system=self.system)
        return replace(
            exchange, system=self.system, system_images=self.system_images, tokens=tuple(tokens)
        )


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


def _append_message(
    exchanges: tuple[Exchange, ...],
    text: str,
    images: tuple[np.ndarray, ...],
    encode: Callable[..., Sequence[int]],
) -> tuple[Exchange, ...]:
    """Returns a conversation with a user message behind its last response."""
    tokens = encode(text, images, response=exchanges[-1].response)
    return (*exchanges, Exchange(text, images, tokens=tuple(tokens)))


def _drop_oldest(
    exchanges: tuple[Exchange, ...], beginning: _Beginning, limit: int
) -> tuple[Exchange, ...]:
    """Returns the newest exchanges that take at most `limit` / `_FREED_SHARE` tokens, or none.

    Args:
      exchanges: Conversation that is too long; its last exchange has no response yet.
      beginning: Beginning of the conversation.
      limit: Largest number of tokens of a prompt.
    """
    limit //= _FREED_SHARE
    for first in range(1, len(exchanges) - 1):
        newest = exchanges[first:]
        # Nothing is encoded for what is too long in any case.
        if _count_tokens(newest) > limit:
            continue
        newest = (beginning.begin_with(newest[0]), *newest[1:])
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


def take_summary(history: History, prompt: Prompt, summary: str) -> None:
    """Gives a history the summary that a prompt has asked for, in place of the conversation so far.

    Without a conversation it is a plan.
    """
    if not prompt.exchanges:
        history.plan = summary
        return
    history.summary = summary
    history.exchanges = ()
