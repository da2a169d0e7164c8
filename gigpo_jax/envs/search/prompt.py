"""How search is worded in prompts."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs.search.actions import split_action
from gigpo_jax.envs.search.text import escape

_ITEM = re.compile(r'^\[\d+\] (?:"([^"]*)" )?(.*)$')
_WORD = re.compile(r"\b[^\W\d]\w*(?:['-]\w+)*")  # numbers are left out: of each a tiny model sees too few to learn it
_SEPARATOR = re.compile(r"(?<![a-z0-9_])(?=did|saw)")  # where a word may be read as one that separates parts
_LONGEST = 24  # words that are kept of one document for tiny models


def turns(inputs: PromptInput) -> list[tuple[int, str, str]]:
    """What was done and what came of it: (number of the turn, action, what was seen next), the oldest first."""
    seen = [*(event.observation for event in inputs.history[1:]), inputs.observation]
    first = inputs.steps - len(inputs.history) + 1
    done = [event.action for event in inputs.history]
    return [(first + place, action, after) for place, (action, after) in enumerate(zip(done, seen))]


@dataclass(frozen=True)
class Research:
    """The prompt for a language model that follows instructions.

    Attributes:
      intro: what the agent is there for.
    """

    intro: str

    def __call__(self, inputs: PromptInput, /) -> str:
        """Renders the question, what was looked up so far, and the format of a response."""
        lines = [self.intro, "Question: " + inputs.task]
        if inputs.steps:
            lines.append(f"Turns taken so far: {inputs.steps}. What you did, and what it gave:")
            for number, action, after in turns(inputs):
                kind, text = split_action(action)
                did = f"<{kind}>{escape(text)}</{kind}>" if kind else "(no search and no answer)"
                lines += [f"[turn {number}] {did}", after]
            if not inputs.history:
                lines.append(inputs.observation)
        lines.append(
            "First reason about what you know and what is missing, between <think> and </think>. Then write exactly "
            "one of two things. To look something up: <search>words to look for</search>, and the passages that fit "
            "best will be shown between <information> and </information>. To finish: <answer>the answer</answer>, as "
            "short as it can be, without an explanation; an answer ends the task."
        )
        return "\n".join(lines)


def shorten(text: str) -> str:
    """A question, an action or an information block in bare words, for tiny models."""
    lines = []
    for line in text.removeprefix("<information>").removesuffix("</information>").split("\n"):
        item = _ITEM.match(line)
        title, body = (item[1] or "", item[2]) if item else ("", line)
        if not body.startswith(title):
            body = f"{title} {body}"
        lines.append(" ".join(_WORD.findall(body.lower())[:_LONGEST]))
    return " ".join(line for line in lines if line)


@dataclass(frozen=True)
class Terse:
    """The prompt for a tiny model trained from scratch: no instructions, single words between the parts.

    `<question> did <query> saw <words of the passages> did <query> saw <words of the passages>`

    Attributes:
      shorten: says a text in fewer words.
    """

    shorten: Callable[[str], str] = shorten

    def __call__(self, inputs: PromptInput, /) -> str:
        """Renders all parts in one line."""
        words = [self.shorten(inputs.task)]
        for _, action, after in turns(inputs):
            words += ["did", self._within(split_action(action)[1]), "saw", self._within(after)]
        if inputs.steps and not inputs.history:
            words += ["saw", self._within(inputs.observation)]
        return " ".join(word for word in words if word)

    def _within(self, text: str) -> str:
        """A query or passages, without the words that separate the parts: no document can begin another turn.

        Nor with a longer word: a tokenizer of whole words reads one that it does not know piece by piece, "sawmill" as
        "saw" and letters, but "_sawmill" as letters alone.
        """
        words = (word for word in self.shorten(text).split() if word not in ("did", "saw"))
        return " ".join(_SEPARATOR.sub("_", word) for word in words)


FULL = Research("You answer a question. You may look things up in a collection of passages before you do.")
COMPACT = Terse()
