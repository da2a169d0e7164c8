"""Prompts of WebShop."""

import math
import re
from dataclasses import replace

from gigpo_jax.env_bridge.prompts import TAGGED_THOUGHT, Instruct, PromptInput

_SEPARATOR = re.compile(r"'? \[sep\] '?|\n")
_LINE_MARKS = re.compile(r"\[/?(?:clicked )?button_?\]")
_FILLER = re.compile(
    r"^(?:i am looking for|i'm looking for|i need|i want to buy|i would like|show me|find me|can you help me to find)"
    r"(?: (?:a|an|some))? "
)
_CAP = re.compile(r", and price lower than (\d+)\.00 dollars$")
_PRICE = re.compile(r"\$(\d+(?:\.\d+)?)")
_MARK = re.compile(r"[,:](?= |$)")
_WORD = re.compile(r"[a-z0-9]+(?:['-][a-z0-9]+)*")
_COMMON = frozenset(re.findall(r"\w+", "a an and are for in is it of or that the this to under with you"))
_UNLISTED = frozenset(["attributes", "back to search", "reviews", "search"])  # not needed for a purchase
_RESULTS = re.compile(r"page -?\d+ \(total results: \d+\)")
_OFFERS = 5  # products shown of a results page
_ASIN = re.compile(r"(?=[a-z]*\d)[a-z0-9]{10}")


def shorten_task(text: str) -> str:
    """A request without its opening and its punctuation, the price cap in whole dollars."""
    return _MARK.sub("", _FILLER.sub("", _CAP.sub(r" under \1", text.lower())))


def _argument(action: str) -> str:
    """`click[red]` -> `red`; the words of a search are left out."""
    return "search" if action.startswith("search[") else action.removeprefix("click[").removesuffix("]")


def _segments(observation: str) -> list[str]:
    text = _LINE_MARKS.sub(" ", observation.lower())
    return [segment.strip().strip("'") for segment in _SEPARATOR.split(text)]


def _tens(price: str) -> str:
    """The lowest of the prices in a text in dollars, rounded up to tens as price caps are; "" if there is none."""
    found = _PRICE.search(price)
    return str(10 * math.ceil(float(found[1]) / 10)) if found else ""


def compact(inputs: PromptInput, /) -> str:
    """The prompt for tiny models trained from scratch: no instructions, and only the task's part of a page.

    `<task> did <argument> ; <argument> .. now <page> can <argument> ; <argument> ..`

    Titles and descriptions are reduced to words of the task, prices to the lowest one, rounded up to tens of dollars
    (caps are multiples of ten). Actions are reduced to their arguments.
    """
    task = shorten_task(inputs.task)
    asked = {word.removesuffix("s") for word in _WORD.findall(task)} - _COMMON
    words = [task]
    if inputs.history:
        words += ["did", " ; ".join(_argument(event.action) for event in inputs.history)]
    segments = _segments(inputs.observation)
    results = any(_RESULTS.fullmatch(segment) for segment in segments)
    words += ["now", _offers(segments, asked) if results else _page(segments, asked)]
    arguments = [_argument(action) for action in inputs.admissible or ()]
    listed = [what for what in arguments if (what == "< prev" if results else what not in _UNLISTED)]
    if listed:
        words += ["can", " ; ".join(listed)]
    return _joined(*words)


def _offers(segments: list[str], asked: set[str]) -> str:
    places = [place for place, segment in enumerate(segments[:-2]) if _ASIN.fullmatch(segment)]
    return " ".join(
        _joined(segments[place], _named(segments[place + 1], asked), _tens(segments[place + 2]), ";")
        for place in places[:_OFFERS]
    )


def _page(segments: list[str], asked: set[str]) -> str:
    price = next((place for place, segment in enumerate(segments) if segment.startswith("price: ")), None)
    if price is not None:
        return _joined("item", _named(segments[price - 1], asked), _tens(segments[price]))
    if "< prev" in segments:
        return _named(" ".join(segments), asked)
    return _joined(*(segment for segment in segments if segment not in _UNLISTED))


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _named(text: str, asked: set[str]) -> str:
    """The words of a text that the task has, each once."""
    return " ".join(dict.fromkeys(word for word in _WORD.findall(text) if word.removesuffix("s") in asked))


FULL = Instruct(
    intro=(
        "You are in an online shop that is simulated in text. Find a product that is what the task asks for, choose "
        "the options it names, and buy it: search[words] looks for products, click[what] follows a button, a "
        "product or an option of the page."
    ),
    hidden=("click[search]",),
)
TAGGED = replace(FULL, thought=TAGGED_THOUGHT)
