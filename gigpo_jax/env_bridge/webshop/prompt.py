"""How WebShop is worded in prompts."""

import re

from gigpo_jax.env_bridge.prompts import Compact, Instruct

_SEPARATOR = re.compile(r"'? \[sep\] '?")
_LINE_MARKS = re.compile(r"\[/?(?:clicked )?button_?\]")
_BUTTONS = frozenset(
    [
        "back to search",
        "< prev",
        "next >",
        "description",
        "features",
        "reviews",
        "attributes",
        "buy now",
        "search",
        "rating: n.a.",
    ]
)
_FILLER = re.compile(
    r"^(?:i am looking for|i'm looking for|i need|i want to buy|i would like|show me|find me|can you help me to find)"
    r"(?: (?:a|an|some))? ",
)
_WORD = re.compile(r"[^\s,;:.()\"']+(?:[.'][^\s,;:.()\"']+)*")
_LONGEST = 24  # words of one segment: titles and descriptions are cut there


def shorten(text: str) -> str:
    """A shop page, or a request, in fewer words, for tiny models.

    Buttons go (a prompt lists them as actions), and so do quotes, marks and punctuation; long texts keep their
    beginning.
    """
    text = _FILLER.sub("", _LINE_MARKS.sub(" ", text).lower().replace(", and price lower than ", " under "))
    segments = (segment.strip().strip("'") for line in text.split("\n") for segment in _SEPARATOR.split(line))
    short = (" ".join(_WORD.findall(segment)[:_LONGEST]) for segment in segments if segment not in _BUTTONS)
    return " ".join(segment for segment in short if segment)


def unlisted(action: str) -> bool:
    """Actions that a tiny model can do without: they never bring a purchase nearer."""
    return action in (
        "click[search]",
        "click[reviews]",
        "click[next >]",
        "click[back to search]",
        "click[attributes]",
    )


FULL = Instruct(
    intro=(
        "You are in an online shop that is simulated in text. Find a product that is what the task asks for, choose "
        "the options it names, and buy it: search[words] looks for products, click[what] follows a button, a "
        "product or an option of the page."
    ),
    hidden=("click[search]",),
)
COMPACT = Compact(shorten=shorten, hidden=unlisted)
