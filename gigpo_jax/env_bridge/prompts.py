"""Observation -> prompt: task, a window of history, observation, admissible actions.

Every step has its own prompt. Texts of an environment are data: they are concatenated, never used
as a format. The tokenizer breaks up special tokens in them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gigpo_jax.env_bridge.image_marks import InputReader, collect_images
from gigpo_jax.env_bridge.types import Observation

_CUT_MARKER = " ... "
# Characters a token; a text longer than limit x this cannot fit and is not tokenised at all.
LONGEST_TOKEN = 32


@dataclass(frozen=True)
class Event:
    """A step of an episode, as prompts show it.

    Attributes:
      observation: Text of the observation.
      action: Action that followed it.
      thought: Text before the action, where the agent's format separates them.
      images: Images of the observation, in the order of their marks.
    """

    observation: str
    action: str
    thought: str = ""
    images: tuple[np.ndarray, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Exchange:
    """A user message and the response to it.

    Attributes:
      text: Text of the user message.
      images: Images of the message, in the order of their marks.
      system: Text of the system message before it; "" unless it is the first of its conversation.
      system_images: Images of the system message.
      tokens: Ids from the end of the response before it, or from the start of the conversation, to
        where its own response begins.
      response: Ids of its response as they were sampled.
    """

    text: str
    images: tuple[np.ndarray, ...] = field(default=(), compare=False)
    system: str = ""
    system_images: tuple[np.ndarray, ...] = field(default=(), compare=False)
    tokens: tuple[int, ...] = ()
    response: tuple[int, ...] = ()


class Advice(NamedTuple):
    """A line that prompts show, such as what the policy wrote in earlier episodes.

    Attributes:
      text: The advice.
      title: Words before it in a prompt of a language model.
      word: Word before it in a prompt of a tiny model.
      stays: Whether a prompt that is too long keeps it.
    """

    text: str
    title: str
    word: str
    stays: bool = False


class History:
    """The events of one episode, for its prompts.

    Attributes:
      task_type: Type of the episode's task.
      first: Text of the first observation.
      first_images: Images of the first observation.
      steps: Number of actions so far.
      exchanges: Conversation so far; empty where each step has a prompt of its own.
      summary: The agent's newest summary of the episode; "" if there is none.
      plan: The agent's present plan; None before it states one.
      advice: Lines of advice.
    """

    def __init__(self, window: int, task_type: str = "") -> None:
        """Starts an empty history of the last `window` >= 0 events."""
        self._events: deque[Event] = deque(maxlen=window)
        self.task_type = task_type
        self.first = ""
        self.first_images: tuple[np.ndarray, ...] = ()
        self.steps = 0
        self.exchanges: tuple[Exchange, ...] = ()
        self.summary = ""
        self.plan: str | None = None
        self.advice: tuple[Advice, ...] = ()

    def add(
        self, observation: str, action: str, thought: str = "", images: tuple[np.ndarray, ...] = ()
    ) -> None:
        """Appends an event, dropping the oldest beyond the window."""
        # Kept apart, because the window drops it and it often holds the goal.
        if self.steps == 0:
            self.first = observation
            self.first_images = images
        self._events.append(Event(observation, action, thought, images))
        self.steps += 1

    def add_response(self, prompt: "Prompt", response: Sequence[int]) -> None:
        """Appends the response, token ids as they were sampled, to the prompt of a conversation.

        Other prompts change nothing.
        """
        if prompt.exchanges:
            *earlier, last = prompt.exchanges
            self.exchanges = (*earlier, replace(last, response=tuple(response)))

    def add_summary(self, prompt: "Prompt", summary: str) -> None:
        """Takes a summary that a prompt has asked for, in place of the conversation so far.

        Without a conversation it is a plan.
        """
        if not prompt.exchanges:
            self.plan = summary
            return
        self.summary = summary
        self.exchanges = ()

    def events(self) -> tuple[Event, ...]:
        """The events of the window, the oldest first."""
        return tuple(self._events)


@dataclass(frozen=True)
class PromptInput:
    """The texts that a template may show.

    Attributes:
      task: Task in words.
      first: First observation of the episode; "" while it is the current one, or when there was no
        room for it.
      history: Last events, the oldest first.
      steps: Number of actions so far.
      observation: Current observation.
      admissible: Actions to list; None: no list.
      task_type: Type of the task, "" if it has none.
      summary: The agent's newest summary of the episode, "" if there is none.
      plan: The agent's present plan, "" if there is none.
      advice: Lines of advice.
    """

    task: str
    first: str
    history: tuple[Event, ...]
    steps: int
    observation: str
    admissible: tuple[str, ...] | None
    task_type: str = ""
    summary: str = ""
    plan: str = ""
    advice: tuple[Advice, ...] = ()


# Any part of the input may be missing; a template never raises.
PromptTemplate = Callable[[PromptInput], str]


@dataclass(frozen=True)
class Prompt:
    """A prompt within the limit of tokens.

    Attributes:
      text: Rendered text, before the chat template; of a conversation what is new in it.
      tokens: Ids of the whole chat message.
      cut: Part of the input that was left out: "" nothing, "history", "observation", or "tokens"
        (then `text` is longer than `tokens`).
      images: Images, uint8 [H, W, 3] each, in the order of their marks in `text`, or in the whole
        conversation.
      exchanges: The conversation, whose last response is still missing; empty for the prompt of a
        single step.
      asks_summary: Whether it asks for a summary of the conversation, or for a plan, and not for
        an action.
    """

    text: str
    tokens: list[int]
    cut: str
    images: tuple[np.ndarray, ...] = field(default=(), compare=False)
    exchanges: tuple[Exchange, ...] = ()
    asks_summary: bool = False


@dataclass(frozen=True)
class Instruct:
    """The prompt for a language model that follows instructions.

    Attributes:
      intro: One or two sentences about the environment and the agent's role.
      hidden: Admissible actions that are not listed.
      thought: Instruction for the beginning of the response; the action comes after it.
      plan_title: Words before the agent's present plan.
    """

    intro: str
    hidden: tuple[str, ...] = ()
    thought: str = (
        "First reason about what you know and what brings you closer to the goal, "
        "between <think> and </think>. "
    )
    plan_title: str = "Your plan: "

    def __call__(self, inputs: PromptInput, /) -> str:
        lines = [self.intro, "Your task: " + inputs.task]
        if inputs.steps:
            lines.append(f"Steps taken so far: {inputs.steps}.")
        if inputs.history:
            count = len(inputs.history)
            heading = "step:" if count == 1 else "steps, the oldest first:"
            lines.append(f"Your last {count} {heading}")
            for number, event in enumerate(inputs.history, inputs.steps - count + 1):
                lines.append(f"[step {number}] You saw: " + event.observation)
                lines.append(f"[step {number}] You did: " + event.action)
        if inputs.plan:
            lines.append(self.plan_title + inputs.plan)
        lines += [advice.title + advice.text for advice in inputs.advice]
        lines.append(self.user(inputs))
        lines.append(self._request(inputs))
        return "\n".join(lines)

    def system(self, inputs: PromptInput, /) -> str:
        """The system message of a conversation: what all steps share."""
        return "\n".join((self.intro, "Your task: " + inputs.task, self._request(inputs)))

    def user(self, inputs: PromptInput, /) -> str:
        """The user message of a conversation: the step."""
        lines = [f"Now, at step {inputs.steps + 1}, you see: " + inputs.observation]
        if inputs.admissible is not None:
            lines.append("What you can do now:")
            lines.extend("- " + action for action in inputs.admissible if action not in self.hidden)
        return "\n".join(lines)

    def _request(self, inputs: PromptInput) -> str:
        request = "Then write one action"
        if inputs.admissible is not None:
            request = "Then choose one action from the list"
        return (
            f"{self.thought}{request} and give it, and nothing else, "
            "between <action> and </action>."
        )


TAGGED_THOUGHT = (
    "First reason between <think> and </think>, in there under one tag: "
    "<planning>..</planning> where you break the task down into steps or make a new plan, "
    "<explore>..</explore> where you try what you have not tried yet, "
    "<reflection>..</reflection> where the last action failed and you find out why, or "
    "<monitor>..</monitor> where you check how far the plan has come. "
)


@dataclass(frozen=True)
class Compact:
    """The prompt for a tiny model trained from scratch, without instructions and with few words.

    `<task> did <action> .. plan <plan> <advice> now <observation> can <action> <action> ..`

    Of the history it shows the actions only. It shows the first observation only if no actions are
    listed: these are the fewest words that still determine the rest of the task.

    Attributes:
      shorten: Function from an observation or task to the same in fewer words.
      hidden: Predicate of the admissible actions that are not listed.
      plan_title: Word before the agent's present plan.
    """

    shorten: Callable[[str], str] = str
    hidden: Callable[[str], bool] = lambda action: False
    plan_title: str = "plan"

    def __call__(self, inputs: PromptInput, /) -> str:
        words = [self.shorten(inputs.task)]
        if inputs.first and inputs.admissible is None:
            words += ["first", self.shorten(inputs.first)]
        if inputs.history:
            words += ["did", *(event.action for event in inputs.history)]
        if inputs.plan:
            words += [self.plan_title, inputs.plan]
        for advice in inputs.advice:
            words += [advice.word, advice.text]
        words.append(self.user(inputs))
        return " ".join(words)

    def system(self, inputs: PromptInput, /) -> str:
        """The system message of a conversation: the task."""
        return self.shorten(inputs.task)

    def user(self, inputs: PromptInput, /) -> str:
        """The user message of a conversation: observation and actions."""
        words = ["now", self.shorten(inputs.observation)]
        if inputs.admissible is not None:
            words += ["can", *(action for action in inputs.admissible if not self.hidden(action))]
        return " ".join(words)

    def request_summary(self, inputs: PromptInput, /) -> str:
        """The message of a conversation that asks for a summary."""
        del inputs
        return "summary"

    def recall_summary(self, inputs: PromptInput, /) -> str:
        """The text of a summary in a conversation's first message."""
        return f"summary {inputs.summary}"


def shows_advice(template: PromptTemplate) -> bool:
    """Whether a template can show `PromptInput.advice`."""
    return isinstance(template, (Compact, Instruct))


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

    A prompt with images may be longer: only the history is left out of it.

    Args:
      template: Function from the prepared texts to the prompt's text.
      observation: Current observation.
      history: Events before it.
      encode: Function from the text, and its images if it has some, to the ids of the whole chat
        message.
      limit: Largest number of tokens.
      show_admissible: Whether the admissible actions are listed.
      template_images: Images that texts of the template refer to, as from
        `image_marks.number_images`.

    Raises:
      InputError: As in `image_marks.number_images`.
    """
    inputs, reader = read_inputs(
        observation, history, show_admissible=show_admissible, template_images=template_images
    )

    def encode_numbered(text: str) -> Sequence[int]:
        # The template has chosen and ordered the texts by now. The numbers lead back to the images
        # of those marks that are left.
        text, images = collect_images(text, reader.images)
        return encode(text, images) if images else encode(text)

    prompt = fit_prompt(
        template, inputs, encode=encode_numbered, limit=limit, keep_observation=reader.has_images
    )
    text, images = collect_images(prompt.text, reader.images)
    return replace(prompt, text=text, images=images)


def read_inputs(
    observation: Observation,
    history: History,
    *,
    show_admissible: bool,
    template_images: Sequence[np.ndarray],
) -> tuple[PromptInput, InputReader]:
    """Prepares the texts of a step for a template, and the reader that has their images.

    Arguments and errors are as for `build_prompt`.
    """
    events = history.events()
    # A prompt without images keeps `<image>` as it is: it is plain text there.
    has_images = bool(template_images or observation.images or history.first_images)
    has_images = has_images or any(event.images for event in events)
    reader = InputReader(template_images, has_images=has_images)

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


def _read_event(reader: InputReader, event: Event) -> Event:
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
