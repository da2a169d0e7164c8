"""Agents: how a language model is asked to act in an evaluation (docs/agents.md).

ReAct (arXiv 2210.03629): thoughts, actions and observations in turn, after examples. Reflexion (arXiv 2303.11366): the
same over several trials of a task, with a reflection of the model between them. The wording is ours.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.prompts import Instruct, PromptInput, PromptTemplate
from gigpo_jax.references import find

# Task type -> episodes that were won, up to the last action; "" stands for all types that are not there.
Examples = Mapping[str, Sequence[PromptInput]]
NO_EXAMPLES: Examples = MappingProxyType({})

MEMORY = 3  # reflections that a prompt shows, the newest ones (Reflexion, section 4)
REFLECTION_TOKENS = 256  # the most of a reflection
_STOP = "\nObservation"
# Possessive (`*+`), so that a response is read in linear time.
_ACTION = re.compile(r"(?:^|\n)[ *]*action(?: \d+)?[ *]*:[\s*]*+([^\n]*[^\n *])", re.IGNORECASE)
_THOUGHT = re.compile(r"^[ *]*thought(?: \d+)?[ *]*:[ *]*", re.IGNORECASE)


@dataclass(frozen=True)
class Agent:
    """A way to ask for actions. What is left out is as the environment has it.

    Attributes:
      template: makes the template of the prompts, from what they say of the environment and from examples.
      read: a response -> its thought and its action as text, or None if it does not keep to the format.
      stop: strings that end a response.
      reflection: makes the template of the prompt for a reflection after a trial that failed; None: there is none.
      trials: the most trials of a task, where `eval.trials` is not set.
    """

    template: Callable[[Instruct, Examples], PromptTemplate] | None = None
    read: Callable[[str], tuple[str, str] | None] | None = None
    stop: tuple[str, ...] = ()
    reflection: Callable[[Instruct], PromptTemplate] | None = None
    trials: int = 1

    def parser(self, parse: Callable[[str], Response], write: Callable[[str], str]) -> Callable[[str], Response]:
        """Responses -> actions: `parse` reads those of the environment's own format, `write` writes them.

        A response that does not keep to the agent's format is invalid, and its action is what `parse` finds.
        """
        read = self.read
        if read is None:
            return parse

        def parsed(response: str) -> Response:
            found = read(response)
            if found is None:
                return replace(parse(response), valid=False)
            return replace(parse(write(found[1])), thought=found[0])

        return parsed


@dataclass(frozen=True)
class ReAct:
    """The prompt of a step: what the environment is, examples, reflections on earlier trials, and the episode so far.

    Attributes:
      about: what it says of the environment.
      examples: those of the task's type are shown.
    """

    about: Instruct
    examples: Examples

    def __call__(self, inputs: PromptInput, /) -> str:
        examples, step = self.examples.get(inputs.task_type, self.examples.get("", ())), inputs.steps + 1
        lines = [
            *filter(None, [self.about.intro]),
            "You work in steps. In each step you write a thought, which says what you know and what to do next, and "
            "one action. Then you get an observation, which says what the action led to.",
        ]
        for number, example in enumerate(examples, 1):
            lines += ["", f"Example {number}.", *_transcript(example), "The task was done."]
        lines += ["", "This is your task.", *_memory(inputs.reflections), *_transcript(inputs)]
        if inputs.admissible is not None:
            lines.append("Actions that you can choose from now:")
            lines += ["- " + action for action in inputs.admissible if action not in self.about.hidden]
        lines.append(
            f'Write your next thought in a line that begins with "Thought {step}:", then your next action in a line '
            f'that begins with "Action {step}:", and nothing else.'
        )
        return "\n".join(lines)


@dataclass(frozen=True)
class Reflection:
    """The prompt for a reflection on a trial that failed.

    Attributes:
      about: what it says of the environment.
    """

    about: Instruct

    def __call__(self, inputs: PromptInput, /) -> str:
        lines = [
            *filter(None, [self.about.intro]),
            f"This is what you did in trial {len(inputs.reflections) + 1} of a task.",
            *_memory(inputs.reflections),
            *_transcript(inputs),
            "The trial ended here and failed: the task was not done. You will try the same task again, from the same "
            "start. Write a note to yourself for that trial, of at most five sentences: which actions were wrong or "
            "missing, and a plan that names the actions to take instead.",
        ]
        return "\n".join(lines)


def _memory(reflections: Sequence[str]) -> list[str]:
    """The newest reflections."""
    numbered = list(enumerate(reflections, 1))[-MEMORY:]
    return [f"Your note after trial {number}, which failed: {text}" for number, text in numbered]


def _transcript(inputs: PromptInput) -> list[str]:
    """The task, the steps that the history has, and the current observation."""
    missing, lines = inputs.steps - len(inputs.history), ["Task: " + inputs.task]
    if missing:
        lines += ["Observation 0: " + inputs.first] if inputs.first else []
        lines.append("(Step 1 is not shown.)" if missing == 1 else f"(Steps 1 to {missing} are not shown.)")
    for number, event in enumerate(inputs.history, missing):
        lines.append(f"Observation {number}: {event.observation}")
        lines += [f"Thought {number + 1}: {event.thought}"] if event.thought else []
        lines.append(f"Action {number + 1}: {event.action}")
    return lines + ([f"Observation {inputs.steps}: {inputs.observation}"] if inputs.observation else [])


def read_step(response: str) -> tuple[str, str] | None:
    """The thought, on one line, and the text of the first action of a ReAct response; None if it has no action."""
    text = response.partition(_STOP)[0]
    action = _ACTION.search(text)
    if action is None:
        return None
    return " ".join(_THOUGHT.sub("", text[: action.start()].strip()).split()), action[1]


AGENTS: dict[str, Agent] = {
    "plain": Agent(),
    "react": Agent(ReAct, read_step, (_STOP,)),
    "reflexion": Agent(ReAct, read_step, (_STOP,), Reflection, trials=3),
}


def find_agent(name: str) -> Agent:
    """A key of `AGENTS`, or "module:NAME" for an `Agent` of one's own; InputError if there is none of that name."""
    return find(name, AGENTS, Agent, key="config.agent")
