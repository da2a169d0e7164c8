"""The agent of Reflexion: ReAct over several trials of a task, with reflections between them.

The wording is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gigpo_jax.env_bridge.exchanges import Advice
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.react import REACT, write_transcript

REFLECTION_TOKENS = 256  # largest length of a reflection
REFLECTIONS = 3  # newest reflections that a prompt shows (section 4 of the paper)


def describe_reflections(texts: Sequence[str]) -> tuple[Advice, ...]:
    """Describes the reflections on earlier trials of a task, for the prompts of a later one."""
    return tuple(
        Advice(text, f"Your note after trial {number}, which failed: ", "note", stays=True)
        for number, text in enumerate(texts, 1)
    )


@dataclass(frozen=True)
class Reflection:
    """The prompt for a reflection on a failed trial.

    Attributes:
      about: Instructions of the environment.
    """

    about: Instruct

    def __call__(self, inputs: PromptInput, /) -> str:
        lines = []
        if self.about.intro:
            lines.append(self.about.intro)
        lines.append(f"This is what you did in trial {len(inputs.advice) + 1} of a task.")
        lines += [advice.title + advice.text for advice in inputs.advice[-REFLECTIONS:]]
        lines += write_transcript(inputs)
        lines.append(
            "The trial ended here and failed: the task was not done. You will try the same task "
            "again, from the same start. Write a note to yourself for that trial, of at most five "
            "sentences: which actions were wrong or missing, and a plan that names the actions to "
            "take instead."
        )
        return "\n".join(lines)


REFLEXION = replace(REACT, reflection=Reflection, trials=3)
