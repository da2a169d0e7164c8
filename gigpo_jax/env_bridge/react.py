"""ReAct (arXiv 2210.03629): an agent of thoughts, actions and observations in turn, with examples.

The wording is ours.
"""

import re
from dataclasses import dataclass

from gigpo_jax.env_bridge.agents import Agent, Examples
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import PromptInput

# A model that continues the transcript would invent the environment's answer; the response ends
# before it.
_STOP = "\nObservation"
# Possessive (`*+`): without it, a response of many stars takes quadratic time.
_ACTION = re.compile(r"(?:^|\n)[ *]*action(?: \d+)?[ *]*:[\s*]*+([^\n]*[^\n *])", re.IGNORECASE)
_THOUGHT = re.compile(r"^[ *]*thought(?: \d+)?[ *]*:[ *]*", re.IGNORECASE)


@dataclass(frozen=True)
class ReAct:
    """The prompt of a ReAct step: environment, examples, advice, and the episode so far.

    Attributes:
      about: Instructions of the environment.
      examples: Examples by task type; the prompt shows the examples of the task's type.
    """

    about: Instruct
    examples: Examples

    def __call__(self, inputs: PromptInput, /) -> str:
        lines = self._write_introduction(inputs)
        lines += write_transcript(inputs)
        lines += self._write_request(inputs)
        return "\n".join(lines)

    def system(self, inputs: PromptInput, /) -> str:
        """The system message of a conversation: examples, advice and task."""
        lines = self._write_introduction(inputs)
        lines.append("Task: " + inputs.task)
        return "\n".join(lines)

    def user(self, inputs: PromptInput, /) -> str:
        """The user message of a conversation: observation and request."""
        lines = [f"Observation {inputs.steps}: {inputs.observation}"]
        lines += self._write_request(inputs)
        return "\n".join(lines)

    def _write_introduction(self, inputs: PromptInput) -> list[str]:
        lines = []
        if self.about.intro:
            lines.append(self.about.intro)
        lines.append(
            "You work in steps. In each step you write a thought, which says what you know and "
            "what to do next, and one action. Then you get an observation, which says what the "
            "action led to."
        )
        examples = self.examples.get(inputs.task_type, self.examples.get("", ()))
        for number, example in enumerate(examples, 1):
            lines += ["", f"Example {number}.", *write_transcript(example), "The task was done."]
        lines += ["", "This is your task."]
        lines += [advice.title + advice.text for advice in inputs.advice]
        return lines

    def _write_request(self, inputs: PromptInput) -> list[str]:
        lines = []
        if inputs.admissible is not None:
            lines.append("Actions that you can choose from now:")
            lines.extend(
                "- " + action for action in inputs.admissible if action not in self.about.hidden
            )
        step = inputs.steps + 1
        lines.append(
            f'Write your next thought in a line that begins with "Thought {step}:", then your next '
            f'action in a line that begins with "Action {step}:", and nothing else.'
        )
        return lines


def write_transcript(inputs: PromptInput) -> list[str]:
    """Returns the lines of task, history and current observation."""
    lines = ["Task: " + inputs.task]
    # The steps before the window. If there are any, the first observation, which often has the
    # goal, stands alone.
    hidden_steps = inputs.steps - len(inputs.history)
    if hidden_steps and inputs.first:
        lines.append("Observation 0: " + inputs.first)
    if hidden_steps == 1:
        lines.append("(Step 1 is not shown.)")
    elif hidden_steps:
        lines.append(f"(Steps 1 to {hidden_steps} are not shown.)")
    for number, event in enumerate(inputs.history, hidden_steps):
        lines.append(f"Observation {number}: {event.observation}")
        if event.thought:
            lines.append(f"Thought {number + 1}: {event.thought}")
        lines.append(f"Action {number + 1}: {event.action}")
    # An example ends with its last action: its observation is empty.
    if inputs.observation:
        lines.append(f"Observation {inputs.steps}: {inputs.observation}")
    return lines


def read_step(response: str) -> tuple[str, str] | None:
    """Reads the thought, as one line, and the first action of a ReAct response.

    Returns:
      The thought and the text of the action; None if the response has no action.
    """
    # A response ends with the token that completes a stop string, so the string is in it.
    text = response.partition(_STOP)[0]
    # The first action: later ones would answer observations that the model has invented.
    action = _ACTION.search(text)
    if action is None:
        return None
    thought = _THOUGHT.sub("", text[: action.start()].strip())
    return " ".join(thought.split()), action[1]


REACT = Agent(ReAct, read_step, (_STOP,))
