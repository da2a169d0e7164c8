"""Prompts of search QA."""

import re

from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs.search.actions import split_action
from gigpo_jax.envs.search.text import escape

_ITEM = re.compile(r'^\[\d+\] (?:"([^"]*)" )?(.*)$')
_WORD = re.compile(r"\b[^\W\d]\w*(?:['-]\w+)*")  # without numbers: each is too rare for a tiny model
_SEPARATOR = re.compile(r"(?<![a-z0-9_])(?=did|saw)")  # words that a tokenizer could read as a separator
_LONGEST = 24  # words kept of a document, for tiny models
INTRO = "You answer a question. You may look things up in a collection of passages before you do."
ACTIONS = (
    "To look something up: <search>words to look for</search>, and the passages that fit best will be shown between "
    "<information> and </information>. To finish: <answer>the answer</answer>, as short as it can be, without an "
    "explanation; an answer ends the task."
)


def turns(inputs: PromptInput) -> list[tuple[int, str, str]]:
    """(number, action, next observation) of the turns in the history, oldest first."""
    seen = [*(event.observation for event in inputs.history[1:]), inputs.observation]
    first = inputs.steps - len(inputs.history) + 1
    done = [event.action for event in inputs.history]
    return [(first + place, action, after) for place, (action, after) in enumerate(zip(done, seen))]


def full(inputs: PromptInput, /) -> str:
    """The prompt for instruction-tuned language models: the question, the turns so far, and the response format."""
    lines = [INTRO, "Question: " + inputs.task]
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
        f"one of two things. {ACTIONS}"
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


def compact(inputs: PromptInput, /) -> str:
    """The prompt for tiny models trained from scratch: no instructions, single words as separators.

    `<question> did <query> saw <words of the passages> did <query> saw <words of the passages>`
    """
    words = [shorten(inputs.task)]
    for _, action, after in turns(inputs):
        words += ["did", _within(split_action(action)[1]), "saw", _within(after)]
    if inputs.steps and not inputs.history:
        words += ["saw", _within(inputs.observation)]
    return " ".join(word for word in words if word)


def _within(text: str) -> str:
    """A query or passages without the separators, so that no document can begin another turn.

    A word tokenizer splits unknown words: "sawmill" into "saw" and letters, but "_sawmill" into letters only.
    """
    words = (word for word in shorten(text).split() if word not in ("did", "saw"))
    return " ".join(_SEPARATOR.sub("_", word) for word in words)
