"""Builds the prompt of a step: the template's text, cut to the token limit."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.prompts import Event, History, Prompt, PromptInput, PromptTemplate
from gigpo_jax.env_bridge.text_reader import TextReader
from gigpo_jax.env_bridge.types import Observation

_CUT_MARKER = " ... "
# Characters a token; a text longer than limit x this cannot fit and is not tokenised at all.
LONGEST_TOKEN = 32


def is_conversation(template: PromptTemplate) -> bool:
    """Whether a template makes one chat of an episode (`conversations.Conversation`)."""
    return hasattr(template, "build_prompt")


class NoSummaryRoom(InputError):
    """A task leaves no room for observations beside summaries of its conversation."""


def build_prompt(
    template: PromptTemplate,
    observation: Observation,
    history: History,
    *,
    encode: Callable[..., Sequence[int]],
    limit: int,
    show_admissible: bool = True,
    template_images: Sequence[np.ndarray] = (),
) -> Prompt:
    """Builds the prompt of one step, of at most `limit` >= 1 tokens.

    A prompt with images may be longer: only the history is left out of it. A conversation has
    prompts of its own (`Conversation.build_prompt`).

    Args:
      template: Function from the prepared texts to the prompt's text.
      observation: Current observation.
      history: Events before it.
      encode: Function from the text, and its images if it has some, to the ids of the whole chat
        message. For a conversation it takes two more arguments: `system`, text of a system message
        before the user message, or `response`, ids of the response that the user message follows;
        then it returns the ids after the response.
      limit: Largest number of tokens.
      show_admissible: Whether the admissible actions are listed.
      template_images: Images that texts of the template refer to, as from
        `image_marks.number_images`.

    Raises:
      InputError: As in `image_marks.number_images`, or the chat template cannot continue a
        conversation.
    """
    if is_conversation(template):
        conversation: Any = template
        return conversation.build_prompt(
            observation, history, encode, limit, show_admissible, template_images
        )
    inputs, reader = read_inputs(observation, history, show_admissible, template_images)

    def encode_numbered(text: str) -> Sequence[int]:
        # The template has chosen and ordered the texts by now. The numbers lead back to the images
        # of those marks that are left.
        text, images = reader.collect_images(text)
        return encode(text, images) if images else encode(text)

    prompt = fit_prompt(
        template, inputs, encode=encode_numbered, limit=limit, keep_observation=reader.has_images
    )
    text, images = reader.collect_images(prompt.text)
    return replace(prompt, text=text, images=images)


def read_inputs(
    observation: Observation,
    history: History,
    show_admissible: bool,
    template_images: Sequence[np.ndarray],
) -> tuple[PromptInput, TextReader]:
    """Prepares the texts of a step for a template, and the reader that has their images.

    Arguments and errors are as for `build_prompt`.
    """
    events = history.events()
    # A prompt without images keeps `<image>` as it is: it is plain text there.
    has_images = bool(template_images or observation.images or history.first_images)
    has_images = has_images or any(event.images for event in events)
    reader = TextReader()
    if has_images:
        from gigpo_jax.env_bridge.image_marks import ImageReader

        reader = ImageReader(template_images)

    admissible = observation.admissible if show_admissible else None
    if admissible is not None:
        admissible = tuple(map(reader.read_text, admissible))
    inputs = PromptInput(
        task=reader.read_text(observation.task),
        first=reader.read_text(history.first, history.first_images),
        history=tuple(_read_event(reader, event) for event in events),
        steps=history.steps,
        observation=reader.read_text(observation.text, observation.images),
        admissible=admissible,
        task_type=history.task_type,
        summary=reader.read_text(history.summary),
        plan=reader.read_text(history.plan or ""),
        advice=tuple(a._replace(text=reader.read_text(a.text)) for a in history.advice),
    )
    return inputs, reader


def _read_event(reader: TextReader, event: Event) -> Event:
    observation = reader.read_text(event.observation, event.images)
    return Event(observation, reader.read_text(event.action), reader.read_text(event.thought))


def fit_prompt(
    template: PromptTemplate,
    inputs: PromptInput,
    *,
    encode: Callable[[str], Sequence[int]],
    limit: int,
    keep_observation: bool = False,
) -> Prompt:
    """Renders a prompt of at most `limit` ids.

    `limit` is >= 1, and the texts have no lone surrogates. It leaves out advice and the first
    observation, then the oldest events, then the middle of the current observation, and at last
    tokens from the left. With `keep_observation` it does not cut the observation. It usually calls
    `encode` once and never raises because of a text.
    """
    # In characters. A text of a megabyte is refused without tokenising it.
    longest = limit * LONGEST_TOKEN

    def render(candidate: PromptInput, cut: str) -> Prompt | None:
        text = template(candidate)
        if len(text) > longest:
            return None
        tokens = list(encode(text))
        return Prompt(text, tokens, cut) if len(tokens) <= limit else None

    # Nearly all prompts fit: one call of the tokenizer.
    prompt = render(inputs, "")
    if prompt is not None:
        return prompt

    events = inputs.history
    # Advice and the first observation go before any event; then the oldest events go.
    advice = tuple(line for line in inputs.advice if line.stays)
    bare = replace(inputs, first="", history=(), advice=advice)

    def render_events(count: int) -> Prompt | None:
        return render(replace(bare, history=events[len(events) - count :]), "history")

    prompt = _find_largest(len(events), render_events)
    if prompt is not None:
        return prompt
    # Cutting text could separate marks from their images, and tokens of an image cannot be cut.
    if keep_observation:
        text = template(bare)
        return Prompt(text, list(encode(text)), "history")

    def render_characters(count: int) -> Prompt | None:
        shortened = _cut_middle(inputs.observation, count)
        return render(replace(bare, observation=shortened), "observation")

    prompt = _find_largest(min(len(inputs.observation), longest), render_characters)
    if prompt is not None:
        return prompt
    text = template(replace(bare, observation=_CUT_MARKER.strip()))
    # From the left: the end of a prompt says how to answer.
    return Prompt(text, list(encode(text[-longest:]))[-limit:], "tokens")


def _cut_middle(text: str, length: int) -> str:
    """Returns the first and last characters of a text, `length` in all, with a marker between."""
    if length >= len(text):
        return text
    # Both ends stay: the beginning says where the agent is, the end often says what its action did.
    tail = length // 2
    return text[: length - tail] + _CUT_MARKER + text[len(text) - tail :]


def _find_largest(maximum: int, render: Callable[[int], Prompt | None]) -> Prompt | None:
    """Returns the prompt with the largest n that fits.

    n is in [0, maximum]. The result is None if the prompt of n = 0 does not fit. Bisection is valid
    because a prompt with a larger n is never shorter.
    """
    prompt = render(0)
    if prompt is None:
        return None
    low = 0
    high = maximum
    while low < high:
        # Rounded up: with `low = middle` a middle that is rounded down would repeat for ever.
        middle = (low + high + 1) // 2
        candidate = render(middle)
        if candidate is None:
            high = middle - 1
        else:
            prompt = candidate
            low = middle
    return prompt
