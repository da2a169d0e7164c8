"""Observation -> prompt: task, a window of history, observation, admissible actions.

Every step has a prompt of its own, or an episode is one conversation (`CHAT`). Texts of an
environment are data: they are concatenated, never used as a format. The tokenizer breaks up special
tokens in them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gigpo_jax.env_bridge.exchanges import Advice, Exchange

CHAT = "chat"  # style of prompts that are one conversation an episode


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
    advice: "tuple[Advice, ...]" = ()


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
    exchanges: "tuple[Exchange, ...]" = ()
    asks_summary: bool = False


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
