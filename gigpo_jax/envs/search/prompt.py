"""Prompts of search QA."""

import re

from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs.search.actions import split_action
from gigpo_jax.envs.search.text import escape_tags

_ITEM = re.compile(r'^\[\d+\] (?:"([^"]*)" )?(.*)$')
# without numbers: each is too rare for a tiny model
_WORD = re.compile(r"\b[^\W\d]\w*(?:['-]\w+)*")
# words that a tokenizer could read as a separator
_SEPARATOR = re.compile(r"(?<![a-z0-9_])(?=did|saw)")
_DOCUMENT_WORDS = 24  # words kept of a document, for tiny models
INTRO = "You answer a question. You may look things up in a collection of passages before you do."
ACTIONS = (
    "To look something up: <search>words to look for</search>, and the passages that fit best "
    "will be shown between <information> and </information>. To finish: <answer>the "
    "answer</answer>, as short as it can be, without an explanation; an answer ends the task."
)

_FORMAT = (
    "First reason about what you know and what is missing, between <think> and </think>. "
    f"Then write exactly one of two things. {ACTIONS}"
)


def list_turns(inputs: PromptInput) -> list[tuple[int, str, str]]:
    """Lists the turns in the history, oldest first, as (number, action, next observation)."""
    # The observation of an event precedes its action: the next event has what followed.
    following = [event.observation for event in inputs.history[1:]]
    following.append(inputs.observation)
    first = inputs.steps - len(inputs.history) + 1
    turns = []
    for row, event in enumerate(inputs.history):
        turns.append((first + row, event.action, following[row]))
    return turns


def write_full_prompt(inputs: PromptInput, /) -> str:
    """The prompt for instruction-tuned language models: question, turns so far, response format."""
    lines = [INTRO, "Question: " + inputs.task]
    if inputs.steps:
        lines.append(f"Turns taken so far: {inputs.steps}. What you did, and what it gave:")
        for number, action, observation in list_turns(inputs):
            kind, text = split_action(action)
            shown_action = "(no search and no answer)"
            if kind:
                shown_action = f"<{kind}>{escape_tags(text)}</{kind}>"
            lines += [f"[turn {number}] {shown_action}", observation]
        if not inputs.history:
            lines.append(inputs.observation)
    lines.append(_FORMAT)
    return "\n".join(lines)


def _write_system_message(inputs: PromptInput, /) -> str:
    """The system message of a conversation: question and format."""
    return "\n".join((INTRO, "Question: " + inputs.task, _FORMAT))


def _write_user_message(inputs: PromptInput, /) -> str:
    """The user message of a conversation: the observation."""
    # An action that is no search gives nothing, and templates may drop an empty message.
    return inputs.observation or "(nothing)"


CHAT = Conversation(_write_user_message, _write_system_message)


def shorten_text(text: str) -> str:
    """Writes a question, action or information block in bare words, for tiny models."""
    block = text.removeprefix("<information>").removesuffix("</information>")
    lines = []
    for line in block.split("\n"):
        item = _ITEM.match(line)
        title = (item[1] or "") if item else ""
        body = item[2] if item else line
        # Most passages begin with their title; a tiny model need not read it twice.
        if not body.startswith(title):
            body = f"{title} {body}"
        words = _WORD.findall(body.lower())[:_DOCUMENT_WORDS]
        if words:
            lines.append(" ".join(words))
    return " ".join(lines)


def write_compact_prompt(inputs: PromptInput, /) -> str:
    """The prompt for tiny models trained from scratch, without instructions.

    Single words are separators: `<question> did <query> saw <words of the passages> did <query> saw
    <words of the passages>`
    """
    phrases = [shorten_text(inputs.task)]
    for _, action, observation in list_turns(inputs):
        query = split_action(action)[1]
        phrases += ["did", _escape_separators(query), "saw", _escape_separators(observation)]
    if inputs.steps and not inputs.history:
        phrases += ["saw", _escape_separators(inputs.observation)]
    return " ".join(phrase for phrase in phrases if phrase)


def _escape_separators(text: str) -> str:
    """Returns a query or passages without the separators, so that no document begins another turn.

    A word tokenizer splits unknown words: "sawmill" into "saw" and letters, but "_sawmill" into
    letters only.
    """
    words = [word for word in shorten_text(text).split() if word not in ("did", "saw")]
    return " ".join(_SEPARATOR.sub("_", word) for word in words)
