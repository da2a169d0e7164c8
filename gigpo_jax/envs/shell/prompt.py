"""Prompts of shell tasks."""

from gigpo_jax.env_bridge.instructions import TAGGED_THOUGHT, Instruct
from gigpo_jax.env_bridge.prompts import Compact, PromptInput

INTRO = (
    "You work in a folder with bash, one command at a time. There is no network, and only this "
    "folder can be written. When the task is done, use the command submit: then a test looks at "
    "the folder, and nothing can be changed any more."
)
FULL = Instruct(INTRO)
TAGGED = Instruct(INTRO, thought=TAGGED_THOUGHT)
COMPACT = Compact()


def show_task_last(inputs: PromptInput, /) -> str:
    """Makes the prompt for tiny models trained from scratch: the observation, then the task.

    The words to copy then have a fixed distance from the response, which is easier to learn.
    """
    return f"{inputs.observation} {inputs.task}"
