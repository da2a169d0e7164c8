"""Lessons: what the policy writes about an episode, for the prompts of later ones.

A strategy is about an episode that did better than the others of its task, a warning about one that
did worse (after SLEA-RL, arXiv 2603.18079). The wording is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gigpo_jax.env_bridge.prompts import Instruct, PromptInput, PromptTemplate
from gigpo_jax.env_bridge.react import write_transcript

LESSON_TOKENS = 64  # largest length of a lesson


class Zone(NamedTuple):
    """A kind of lesson.

    Attributes:
      shown: Largest number of its lessons in a prompt, as in SLEA-RL.
      title: Words before a lesson in a prompt of a language model.
      word: Word before a lesson, and request for one, in a prompt of a tiny model.
      request: Request for a lesson.
    """

    shown: int
    title: str
    word: str
    request: str


STRATEGIES = "strategies"
WARNINGS = "warnings"
METRICS = {
    f"experience/{STRATEGIES}": "lessons in the library on what worked",
    f"experience/{WARNINGS}": "lessons in the library on what failed",
}
ZONES = {
    STRATEGIES: Zone(
        2,
        "What worked here before: ",
        "tip",
        "This episode did the task. Write down for others who come into the same places what "
        "worked, in at most two short sentences that name actions. Write nothing else.",
    ),
    WARNINGS: Zone(
        1,
        "What failed here before: ",
        "avoid",
        "This episode failed: the task was not done. Write down for others who come into the same "
        "places what to avoid, in at most two short sentences that name actions. Write nothing "
        "else.",
    ),
}


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
            return "\n".join((self.template.intro, *lines, ZONES[self.zone].request))
        return f"{self.template(inputs)} {ZONES[self.zone].word}"
