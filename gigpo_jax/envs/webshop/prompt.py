"""Prompts of WebShop."""

import math
import re
from dataclasses import replace

from gigpo_jax.env_bridge.instructions import TAGGED_THOUGHT, Instruct
from gigpo_jax.env_bridge.prompts import PromptInput

_SEPARATOR = re.compile(r"'? \[sep\] '?|\n")
_LINE_MARKS = re.compile(r"\[/?(?:clicked )?button_?\]")
_FILLER = re.compile(
    r"^(?:i am looking for|i'm looking for|i need|i want to buy|i would like|show me|find me"
    r"|can you help me to find)(?: (?:a|an|some))? "
)
_CAP = re.compile(r", and price lower than (\d+)\.00 dollars$")
_PRICE = re.compile(r"\$(\d+(?:\.\d+)?)")
_PUNCTUATION = re.compile(r"[,:](?= |$)")
_WORD = re.compile(r"[a-z0-9]+(?:['-][a-z0-9]+)*")
# fmt: off
_COMMON = frozenset((
    "a", "an", "and", "are", "for", "in", "is", "it", "of", "or", "that", "the", "this", "to",
    "under", "with", "you",
))
# fmt: on
# buttons that no purchase needs
_UNLISTED = frozenset(["attributes", "back to search", "reviews", "search"])
_RESULTS = re.compile(r"page -?\d+ \(total results: \d+\)")
_OFFERS = 5  # products of a results page in a prompt
_ASIN = re.compile(r"(?=[a-z]*\d)[a-z0-9]{10}")


def shorten_task(text: str) -> str:
    """Returns a request without its opening and punctuation, its price cap in whole dollars."""
    capped = _CAP.sub(r" under \1", text.lower())
    return _PUNCTUATION.sub("", _FILLER.sub("", capped))


def _read_argument(action: str) -> str:
    """Reads an action's argument: `click[red]` -> `red`; for a search, the word "search" alone."""
    if action.startswith("search["):
        return "search"
    return action.removeprefix("click[").removesuffix("]")


def _split_segments(observation: str) -> list[str]:
    text = _LINE_MARKS.sub(" ", observation.lower())
    return [segment.strip().strip("'") for segment in _SEPARATOR.split(text)]


def _round_price(text: str) -> str:
    """Returns a text's first price in dollars, rounded up to tens; "" if there is none."""
    price = _PRICE.search(text)
    # Caps are multiples of ten: rounded prices compare with them as the exact ones do.
    return str(10 * math.ceil(float(price[1]) / 10)) if price else ""


def write_compact_prompt(inputs: PromptInput, /) -> str:
    """The prompt for tiny models trained from scratch, without instructions.

    It has only the task's part of a page: `<task> did <argument> ; <argument> .. now <page> can
    <argument> ; <argument> ..`

    Titles and descriptions are reduced to words of the task, prices to the lowest one, rounded up
    to tens of dollars (caps are multiples of ten). Actions are reduced to their arguments.
    """
    task = shorten_task(inputs.task)
    task_words = {word.removesuffix("s") for word in _WORD.findall(task)} - _COMMON
    phrases = [task]
    if inputs.history:
        history = [_read_argument(event.action) for event in inputs.history]
        phrases += ["did", " ; ".join(history)]

    segments = _split_segments(inputs.observation)
    on_results = any(_RESULTS.fullmatch(segment) for segment in segments)
    summary = _summarise_results if on_results else _summarise_page
    phrases += ["now", summary(segments, task_words)]

    arguments = [_read_argument(action) for action in inputs.admissible or ()]
    if on_results:  # the products stand in the summary
        listed = [argument for argument in arguments if argument == "< prev"]
    else:
        listed = [argument for argument in arguments if argument not in _UNLISTED]
    if listed:
        phrases += ["can", " ; ".join(listed)]
    return _join_phrases(*phrases)


def _summarise_results(segments: list[str], task_words: set[str]) -> str:
    """Summarises a results page's first products: asin, the task's words in the title, price."""
    rows = [row for row, segment in enumerate(segments[:-2]) if _ASIN.fullmatch(segment)]
    offers = []
    for row in rows[:_OFFERS]:
        title = _keep_task_words(segments[row + 1], task_words)
        offers.append(_join_phrases(segments[row], title, _round_price(segments[row + 2]), ";"))
    return " ".join(offers)


def _summarise_page(segments: list[str], task_words: set[str]) -> str:
    """Summarises another page: an item's title and price, or the text of a sub-page."""
    for row, segment in enumerate(segments):
        if segment.startswith("price: "):
            title = _keep_task_words(segments[row - 1], task_words)
            return _join_phrases("item", title, _round_price(segment))
    if "< prev" in segments:
        return _keep_task_words(" ".join(segments), task_words)
    return _join_phrases(*(segment for segment in segments if segment not in _UNLISTED))


def _join_phrases(*phrases: str) -> str:
    return " ".join(phrase for phrase in phrases if phrase)


def _keep_task_words(text: str, task_words: set[str]) -> str:
    """Returns the text's words that the task has, each once."""
    words = [word for word in _WORD.findall(text) if word.removesuffix("s") in task_words]
    return " ".join(dict.fromkeys(words))


FULL = Instruct(
    intro=(
        "You are in an online shop that is simulated in text. Find a product that is what the task "
        "asks for, choose the options it names, and buy it: search[words] looks for products, "
        "click[what] follows a button, a product or an option of the page."
    ),
    hidden=("click[search]",),
)
TAGGED = replace(FULL, thought=TAGGED_THOUGHT)
