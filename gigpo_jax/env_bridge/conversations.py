"""Conversations: one chat an episode, in place of a prompt of its own for each step.

The system message has what all steps share, each observation is a user message, and each response
stays as it was sampled, token by token: only new messages are encoded. When a conversation would be
longer than the limit of a prompt, its oldest pairs of message and response are dropped, or the
policy summarises it first, and it goes on from the summary (after MemAgent, arXiv 2507.02259).
"""

from dataclasses import dataclass

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.prompts import PromptInput, PromptTemplate

CHAT = "chat"  # style of prompts


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


class NoSummaryRoom(InputError):
    """A task leaves no room for observations beside summaries."""
