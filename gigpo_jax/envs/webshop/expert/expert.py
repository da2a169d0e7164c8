"""An expert for WebShop that uses observations alone.

It searches for the words of the task, opens the best offers within the price, reads descriptions until one covers all
words of the task, chooses the options in the task, and buys.
"""

import re
from dataclasses import dataclass, field

from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.webshop.engine.pages import SEPARATOR

_CAP = re.compile(r", and price lower than ([\d.]+) dollars$")
_WORD = re.compile(r"[^\W_]+")
_TERM = re.compile(r"[^\W_]+(?:\.\d+)?")
_PRICE = re.compile(r"\$(\d[\d.]*)")
_MARKS = re.compile(r"\[(?:clicked )?button_?\]")
_FIXED = {"back to search", "< prev", "next >", "description", "features", "reviews", "attributes", "buy now", "search"}
_FILLER = frozenset(_WORD.findall("a an and be can for i in is it me of or should that the to with would you"))
_OPENING = re.compile(
    r"^(?:i am looking for|i'm looking for|i need|i want to buy|i want|i would like|show me|find me"
    r"|can you help me to find)\b",
    re.IGNORECASE,
)
_SUB_PAGES = ("description", "features")
_TOO_SHORT = 40  # characters: with less text, reading another page is worth two steps
_ENOUGH = re.compile(r"\.(?!\d)|, it |, which | that | with | for ")


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _segments(text: str) -> list[str]:
    """The nodes of an observation, in either of its forms."""
    if SEPARATOR in text or text.startswith("'"):
        return [part[1:-1] if len(part) > 1 and part[0] == part[-1] == "'" else part for part in text.split(SEPARATOR)]
    return [_MARKS.sub("", line).strip() for line in text.split("\n")]


@dataclass
class _Offer:
    """A product seen on a results page."""

    asin: str  # lower case, as it is clicked
    low: float  # low, high: its price range, in dollars
    high: float
    title: str
    read: set[str] = field(default_factory=set)  # the sub-pages read so far
    text: str = ""  # of the sub-pages in `read`
    values: tuple[str, ...] = ()  # option values that can be clicked
    chosen: tuple[str, ...] = ()  # values that the task names, in page order
    clashes: int = 0  # how many of `chosen` are values of an option that has another one chosen
    missing: frozenset[str] = frozenset()  # words of the task that are not in its text
    opened: bool = False


class ShopExpert:
    """Plays one episode of `max_steps` steps; see `base.Expert`. It is deterministic."""

    def __init__(self, *, max_steps: int = 15) -> None:
        self._left = max_steps
        self._body = ""
        self._cap = float("inf")
        self._request = ""
        self._phrases: list[str] = []  # option values in the task
        self._words: set[str] = set()  # the other words of the task
        self._attributes: list[str] = []  # attributes in the task
        self._offers: dict[str, _Offer] = {}
        self._open: _Offer | None = None
        self._clicked: list[str] = []
        self._final: _Offer | None = None
        self._last = ""

    def act(self, observation: Observation) -> str:
        self._last = self._act(observation)
        return self._last

    def _act(self, observation: Observation) -> str:
        clickable = [a[6:-1] for a in observation.admissible or () if a.startswith("click[")]
        if not self._body:
            self._understand(observation.task)
        self._left -= 1
        if "buy now" in clickable:
            return self._on_item(observation.text, clickable)
        if "next >" in clickable:
            return self._on_results(observation.text, clickable)
        if "< prev" in clickable:
            return self._on_sub_page(observation.text)
        return f"search[{self._query()}]"

    @property
    def choices(self) -> tuple[str, ...]:
        """The clicks that choose the task's options, on the open item."""
        return () if self._open is None else tuple(f"click[{value}]" for value in self._open.chosen)

    @property
    def thought(self) -> str:
        """The reason for the last action, in words."""
        what = self._last.partition("[")[2][:-1]
        offer = self._offers.get(what)
        if self._last.startswith("search["):
            return "I search for what the task asks for: the product and the options that it names."
        if offer is not None:
            return f"{what.upper()} fits the task best so far, and costs ${offer.low:.2f}. I open it."
        if what in _SUB_PAGES and self._open is not None:
            missing = self._open.missing
            phrases = sorted(one for one in missing if not any(one in other for other in missing - {one}))
            return f"The title does not say: {', '.join(phrases)}. I look for that in the {what}."
        if self._last in self.choices:
            return f"The task asks for {what}. I choose it."
        if what == "buy now":
            return "This is what the task asks for, and all options that it names are chosen. I buy it."
        return {"< prev": "I have seen enough here and go back.", "next >": "None of these fits. I look further."}.get(
            what, ""
        )

    def retract(self) -> None:
        """Takes back the last action, which was not carried out."""
        if self._last in self.choices:
            self._clicked.pop()
        elif self._open is not None and self._last == f"click[{self._open.asin}]":
            self._open.opened = False

    def _understand(self, task: str) -> None:
        cap = _CAP.search(task)
        if cap is not None:
            self._cap = float(cap.group(1))
        self._body = _CAP.sub("", task).strip()
        request, found, listed = self._body.partition(" with ")
        pairs = [part.partition(": ") for part in listed.split(", and ")] if found else []
        if pairs and all(separator for _, separator, _ in pairs):
            self._phrases = [value for _, _, value in pairs]
        else:
            request, _, listed = self._body.strip(".").rpartition(" in ")
            request, listed = (request, _ENOUGH.split(listed)[0]) if request else (listed, "")
            self._phrases = [phrase.strip() for phrase in listed.split(", ") if phrase]
            request = self._body.replace(f" in {listed}", " ") if listed else request
        self._request = _OPENING.sub("", request)
        self._words = {word.removesuffix("s") for word in _words(self._request) - _FILLER}
        listed_before = re.split(r", (?:and )?| and ", self._request.strip().lower())[:-1]
        self._attributes = [part for part in listed_before if part and not _words(part) & _FILLER]

    def _query(self) -> str:
        """The task's words without filler words. Options occur twice: few products of a kind have all of them."""
        words = [word for word in _WORD.findall(self._request.lower()) if word not in _FILLER]
        return " ".join([*words, *2 * _TERM.findall(" ".join(self._phrases))])

    def _on_results(self, text: str, clickable: list[str]) -> str:
        self._clicked = []  # leaving an item clears its options
        segments = _segments(text)
        asins = [what for what in clickable if what not in _FIXED]
        for asin in asins:
            if asin not in self._offers and asin.upper() in segments:
                place = segments.index(asin.upper())
                prices = [float(price) for price in _PRICE.findall(" ".join(segments[place + 2 : place + 3]))] or [0.0]
                self._offers[asin] = _Offer(asin, prices[0], prices[-1], segments[place + 1])
        if self._final is not None and self._final.asin in asins:
            return self._enter(self._final)
        fresh = [offer for asin in asins if (offer := self._offers.get(asin)) is not None and not offer.opened]
        best = next((offer for offer in fresh if offer.low <= self._cap), None)  # results are sorted by relevance
        known = self._best_known()
        if best is not None and (known is None or self._left > 4 + len(self._phrases)):
            return self._enter(best)
        if known is not None and known.asin in asins:
            self._final = known
            return self._enter(known)
        if self._left > 6 and known is None:
            return "click[next >]"
        return self._enter(fresh[0]) if fresh else "click[back to search]"

    def _best_known(self) -> _Offer | None:
        opened = [offer for offer in self._offers.values() if offer.opened]
        return min(opened, key=self._cost, default=None)

    def _cost(self, offer: _Offer) -> tuple[int, int, bool]:
        """Lower is better: missing options, missing words of the task, a price that may be too high."""
        return self._unmet(offer), len(offer.missing) + 2 * (offer.low > self._cap), offer.high > self._cap

    def _unmet(self, offer: _Offer) -> int:
        return offer.clashes + sum(phrase not in offer.values for phrase in self._phrases)

    def _enter(self, offer: _Offer) -> str:
        self._open, self._clicked, offer.opened = offer, [], True
        return f"click[{offer.asin}]"

    def _on_sub_page(self, text: str) -> str:
        if self._open is not None:
            self._open.text += " " + " ".join(
                part for part in _segments(text) if part not in ("Back to Search", "< Prev")
            )
        return "click[< prev]"

    def _on_item(self, text: str, clickable: list[str]) -> str:
        offer = self._recognise(_segments(text))
        if offer is None:
            return "click[< prev]"
        if not offer.values:
            offer.values = tuple(what for what in clickable if what not in _FIXED)
            self._choose(offer, _segments(text))
        self._judge(offer)
        remaining = [value for value in offer.chosen if value not in self._clicked]
        if self._final is not offer:
            spare = self._left - len(remaining)  # steps left after a purchase of this offer
            if not self._unmet(offer) and offer.missing and spare >= 2:
                for page in _SUB_PAGES:
                    if page not in offer.read and page in clickable and len(offer.text) < _TOO_SHORT:
                        offer.read.add(page)
                        return f"click[{page}]"
            if sum(self._cost(offer)) and spare >= 3 + len(self._phrases) and self._others():
                return "click[< prev]"
            known = self._best_known()
            if known is not None and self._cost(known) < self._cost(offer) and spare >= 3:
                self._final = known
                return "click[< prev]"
            self._final = offer
        if remaining and self._left >= 1:
            self._clicked.append(remaining[0])
            return f"click[{remaining[0]}]"
        return "click[buy now]"

    def _recognise(self, segments: list[str]) -> _Offer | None:
        """The offer of the open page; None for one that was on no results page."""
        if self._open is None or self._open.title not in segments:
            self._open = next((offer for offer in self._offers.values() if offer.title in segments), None)
            if self._open is not None:
                self._open.opened = True
        return self._open

    def _others(self) -> bool:
        return any(not offer.opened and offer.low <= self._cap for offer in self._offers.values())

    def _judge(self, offer: _Offer) -> None:
        text = f"{offer.title} {offer.text}".lower()
        covered = {word.removesuffix("s") for word in _words(text)}
        unsaid = {attribute for attribute in self._attributes if attribute not in text}
        offer.missing = frozenset(self._words - covered) | unsaid

    def _choose(self, offer: _Offer, segments: list[str]) -> None:
        """Finds the values to click: one for each option in the task."""
        groups: list[list[str]] = []
        inside = False
        for segment in segments:  # an option's name comes before its values
            if segment in offer.values:
                if not inside:
                    groups.append([])
                groups[-1].append(segment)
            inside = segment in offer.values
        exact = [value for value in self._phrases if value in offer.values]
        body = f" {self._body.strip('.').lower()} "
        for group in groups:
            if not set(group) & set(exact):
                named = [value for value in group if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", body)]
                exact += [max(named, key=len)] if named else []
        offer.chosen = tuple(dict.fromkeys(exact))
        owner: dict[str, int | str] = {
            value: number for number, group in enumerate(groups) for value in group
        }  # the last that has it
        offer.clashes = len(offer.chosen) - len({owner.get(value, value) for value in offer.chosen})
