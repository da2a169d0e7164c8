"""Lessons: what the policy writes about an episode, for the prompts of later ones.

A strategy is about an episode that did better than the others of its task, a warning about one that
did worse (after SLEA-RL, arXiv 2603.18079). The wording is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.env_bridge.prompts import Instruct, PromptInput, PromptTemplate
from gigpo_jax.env_bridge.react import write_transcript

STRATEGIES = "strategies"
WARNINGS = "warnings"
ZONES = (STRATEGIES, WARNINGS)
LESSON_TOKENS = 64  # largest length of a lesson
# Of SLEA-RL.
_SHOWN = {STRATEGIES: 2, WARNINGS: 1}
_REQUESTS = {
    STRATEGIES: "This episode did the task. Write down for others who come into the same places "
    "what worked, in at most two short sentences that name actions. Write nothing else.",
    WARNINGS: "This episode failed: the task was not done. Write down for others who come into the "
    "same places what to avoid, in at most two short sentences that name actions. Write nothing "
    "else.",
}
_WORDS = {STRATEGIES: "tip", WARNINGS: "avoid"}


def count_shown(zone: str) -> int:
    """Largest number of lessons of a zone in a prompt."""
    return _SHOWN[zone]


@dataclass(frozen=True)
class LessonRequest:
    """The prompt for a lesson, after an episode.

    Attributes:
      template: Template of the prompts of steps, for which `prompts.shows_advice` holds.
      zone: One of `ZONES`.
    """

    template: PromptTemplate
    zone: str

    def __call__(self, inputs: PromptInput, /) -> str:
        if isinstance(self.template, Instruct):
            lines: Sequence[str] = write_transcript(inputs)
            return "\n".join((self.template.intro, *lines, _REQUESTS[self.zone]))
        return f"{self.template(inputs)} {_WORDS[self.zone]}"
