"""Observation -> prompt. Every step has its own prompt: task, a window of history, observation, admissible actions.

Texts of an environment are data: they are concatenated, never used as a format. The tokenizer breaks up special tokens
in them.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gigpo_jax.env_bridge.history import Event, History
from gigpo_jax.env_bridge.types import IMAGE, Observation
from gigpo_jax.errors import InputError

MARKER = " ... "
_NO_IMAGE = IMAGE[0] + " " + IMAGE[1:]  # what a mark without an image becomes
_NUMBERED = re.compile(IMAGE + "\ue000(\\d+)\ue000")  # the place of an image in a text that is being rendered
_LONGEST_TOKEN = 32  # characters; text longer than limit x this is cut before it is tokenised


@dataclass(frozen=True)
class PromptInput:
    """What a template may show.

    Attributes:
      task: the task in words.
      first: the first observation of the episode; "" while it is the current one, or when there was no room for it.
      history: the last events, the oldest first.
      steps: actions taken so far.
      observation: the current observation.
      admissible: the actions to list; None: none are listed.
      task_type: of the task, "" if it has none.
      reflections: what the agent wrote after each earlier trial of the task, the oldest first.
    """

    task: str
    first: str
    history: tuple[Event, ...]
    steps: int
    observation: str
    admissible: tuple[str, ...] | None
    task_type: str = ""
    reflections: tuple[str, ...] = ()


PromptTemplate = Callable[[PromptInput], str]  # any part of the input may be missing; never raises


@dataclass(frozen=True)
class Prompt:
    """A prompt that fits.

    Attributes:
      text: as rendered, before the chat template.
      tokens: the ids of the whole chat message.
      cut: what was left out: "" nothing, "history", "observation", or "tokens" (then `text` is longer than `tokens`).
      images: uint8 [H, W, 3] each, in the order of their marks in `text`.
    """

    text: str
    tokens: list[int]
    cut: str
    images: tuple[np.ndarray, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Instruct:
    """The prompt for a language model that follows instructions.

    Attributes:
      intro: one or two sentences: where the agent is and what it is for.
      hidden: admissible actions that are not listed.
      thought: how the response begins; the action comes after it.
    """

    intro: str
    hidden: tuple[str, ...] = ()
    thought: str = (
        "First reason about what you know and what brings you closer to the goal, between <think> and </think>. "
    )

    def __call__(self, inputs: PromptInput, /) -> str:
        lines = [self.intro, "Your task: " + inputs.task]
        if inputs.steps:
            lines.append(f"Steps taken so far: {inputs.steps}.")
        if inputs.history:
            count = len(inputs.history)
            lines.append(f"Your last {count} " + ("step:" if count == 1 else "steps, the oldest first:"))
            for number, event in enumerate(inputs.history, inputs.steps - count + 1):
                lines.append(f"[step {number}] You saw: " + event.observation)
                lines.append(f"[step {number}] You did: " + event.action)
        lines.append(f"Now, at step {inputs.steps + 1}, you see: " + inputs.observation)
        choose = "Then write one action"
        if inputs.admissible is not None:
            lines.append("What you can do now:")
            lines.extend("- " + action for action in inputs.admissible if action not in self.hidden)
            choose = "Then choose one action from the list"
        lines.append(self.thought + choose + " and give it, and nothing else, between <action> and </action>.")
        return "\n".join(lines)


TAGGED_THOUGHT = (
    "First reason between <think> and </think>, in there under one tag: <planning>..</planning> where you break the "
    "task down into steps or make a new plan, <explore>..</explore> where you try what you have not tried yet, "
    "<reflection>..</reflection> where the last action failed and you find out why, or <monitor>..</monitor> where you "
    "check how far the plan has come. "
)


@dataclass(frozen=True)
class Compact:
    """The prompt for a tiny model trained from scratch: no instructions, single words between the parts.

    `<task> did <action> <action> .. now <observation> can <action> <action> ..`

    Of the history it shows the actions only, and the first observation only where no actions are listed: the fewest
    words that still determine what is left to do.

    Attributes:
      shorten: an observation or task -> the same in fewer words.
      hidden: whether an admissible action is not listed.
    """

    shorten: Callable[[str], str] = str
    hidden: Callable[[str], bool] = lambda action: False

    def __call__(self, inputs: PromptInput, /) -> str:
        words = [self.shorten(inputs.task)]
        if inputs.first and inputs.admissible is None:
            words += ["first", self.shorten(inputs.first)]
        if inputs.history:
            words += ["did", *(event.action for event in inputs.history)]
        words += ["now", self.shorten(inputs.observation)]
        if inputs.admissible is not None:
            words += ["can", *(action for action in inputs.admissible if not self.hidden(action))]
        return " ".join(words)


def _clean(text: str) -> str:
    """Text that every tokenizer accepts: lone surrogates become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def numbered(
    text: str, images: Sequence[np.ndarray], known: Sequence[np.ndarray]
) -> tuple[str, tuple[np.ndarray, ...]]:
    """The text with a number at the mark of each of its images, and `known` with them; a text without any as it is.

    Raises:
      InputError: the text of an observation with images has more or fewer marks than images.
    """
    marks, numbers = text.count(IMAGE), itertools.count(len(known))
    if images and marks != len(images):
        raise InputError(
            f"config.env.name: an observation has {len(images)} image(s) and {marks} {IMAGE} in its text; the "
            f"environment must write one {IMAGE} for each image"
        )
    if images:
        text = re.sub(IMAGE, lambda mark: f"{mark[0]}\ue000{next(numbers)}\ue000", text)
    return text, (*known, *images)


def build_prompt(
    template: PromptTemplate,
    observation: Observation,
    history: History,
    *,
    encode: Callable[..., Sequence[int]],
    limit: int,
    show_admissible: bool = True,
    known: Sequence[np.ndarray] = (),
) -> Prompt:
    """The prompt of one step, at most `limit` >= 1 tokens.

    A prompt with images may be longer: nothing but the history is left out of it.

    Args:
      encode: the text, and its images if it has some -> the ids of the whole chat message.
      known: images to which texts of the template refer, as from `numbered`.

    Raises:
      InputError: as `numbered`.
    """
    images, events = tuple(known), history.events()
    shown = any((images, observation.images, history.first_images, *(event.images for event in events)))

    def read(text: str, own: Sequence[np.ndarray] = ()) -> str:
        nonlocal images
        text = _clean(text)
        if own:
            text, images = numbered(text, own, images)
        elif shown:
            text = text.replace(IMAGE, _NO_IMAGE)
        return text

    def encoded(text: str) -> Sequence[int]:
        text, own = _unnumbered(text, images)
        return encode(text, own) if own else encode(text)

    admissible = observation.admissible if show_admissible else None
    inputs = PromptInput(
        task=read(observation.task),
        first=read(history.first, history.first_images),
        history=tuple(Event(read(x.observation, x.images), read(x.action), read(x.thought)) for x in events),
        steps=history.steps,
        observation=read(observation.text, observation.images),
        admissible=None if admissible is None else tuple(map(read, admissible)),
        task_type=history.task_type,
        reflections=tuple(map(read, history.reflections)),
    )
    prompt = fit_prompt(template, inputs, encode=encoded, limit=limit, whole=shown)
    text, own = _unnumbered(prompt.text, images)
    return replace(prompt, text=text, images=own)


def _unnumbered(text: str, known: Sequence[np.ndarray]) -> tuple[str, tuple[np.ndarray, ...]]:
    """The text with marks alone, and the images at them."""
    return _NUMBERED.sub(IMAGE, text), tuple(known[int(number)] for number in _NUMBERED.findall(text))


def fit_prompt(
    template: PromptTemplate,
    inputs: PromptInput,
    *,
    encode: Callable[[str], Sequence[int]],
    limit: int,
    whole: bool = False,
) -> Prompt:
    """Renders a prompt of at most `limit` >= 1 ids, from texts without lone surrogates.

    It leaves out the first observation and the oldest events, then the middle of the current observation, and at last
    tokens from the left; if it has to be `whole`, the first two alone. Usually calls `encode` once. Never raises
    because of a text.
    """
    longest = limit * _LONGEST_TOKEN

    def attempt(shown: PromptInput, cut: str) -> Prompt | None:
        text = template(shown)
        if len(text) > longest:  # too long without tokenising it
            return None
        tokens = list(encode(text))
        return Prompt(text, tokens, cut) if len(tokens) <= limit else None

    prompt = attempt(inputs, "")
    if prompt is not None:
        return prompt
    events, seen = inputs.history, inputs.observation
    bare = replace(inputs, first="", history=())
    prompt = _largest(len(events), lambda n: attempt(replace(bare, history=events[len(events) - n :]), "history"))
    if prompt is None and whole:
        return Prompt(text := template(bare), list(encode(text)), "history")
    if prompt is None:
        most = min(len(seen), longest)
        prompt = _largest(most, lambda n: attempt(replace(bare, observation=_cut(seen, n)), "observation"))
    if prompt is not None:
        return prompt
    text = template(replace(bare, observation=MARKER.strip()))
    return Prompt(text, list(encode(text[-longest:]))[-limit:], "tokens")


def _cut(text: str, keep: int) -> str:
    """The first and last characters of a text, `keep` in all, with a marker between them."""
    if keep >= len(text):
        return text
    tail = keep // 2
    return text[: keep - tail] + MARKER + (text[-tail:] if tail else "")


def _largest(most: int, render: Callable[[int], Prompt | None]) -> Prompt | None:
    """The prompt with the largest n in [0, most] that fits, by bisection (more is never shorter)."""
    best = render(0)
    if best is None:
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        prompt = render(middle)
        if prompt is None:
            high = middle - 1
        else:
            best, low = prompt, middle
    return best
