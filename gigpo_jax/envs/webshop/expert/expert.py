"""An expert for WebShop that uses observations alone.

It searches for the words of the task, opens the best offers within the price, reads descriptions
until one covers all words of the task, chooses the options in the task, and buys.
"""

import re
from dataclasses import dataclass, field

from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.webshop.engine.pages import BACK, PREVIOUS, SEPARATOR

_CAP = re.compile(r", and price lower than ([\d.]+) dollars$")
_WORD = re.compile(r"[^\W_]+")
_TERM = re.compile(r"[^\W_]+(?:\.\d+)?")
_PRICE = re.compile(r"\$(\d[\d.]*)")
_MARKS = re.compile(r"\[(?:clicked )?button_?\]")
_FIXED = {
    "back to search",
    "< prev",
    "next >",
    "description",
    "features",
    "reviews",
    "attributes",
    "buy now",
    "search",
}
_FILLER = frozenset(
    _WORD.findall("a an and be can for i in is it me of or should that the to with would you")
)
_OPENING = re.compile(
    r"^(?:i am looking for|i'm looking for|i need|i want to buy|i want|i would like|show me|find me"
    r"|can you help me to find)\b",
    re.IGNORECASE,
)
_SUB_PAGES = ("description", "features")
_TOO_SHORT = 40  # characters: with less text, reading another page is worth two steps
_ENOUGH = re.compile(r"\.(?!\d)|, it |, which | that | with | for ")


def _word_set(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _word_stems(text: str) -> set[str]:
    """The words of a text, without a plural s."""
    return {word.removesuffix("s") for word in _word_set(text)}


def _split_observation(text: str) -> list[str]:
    """The nodes of an observation, in either of its forms."""
    if SEPARATOR in text or text.startswith("'"):
        return [_unquote(segment) for segment in text.split(SEPARATOR)]
    return [_MARKS.sub("", line).strip() for line in text.split("\n")]


def _unquote(segment: str) -> str:
    if len(segment) > 1 and segment[0] == segment[-1] == "'":
        return segment[1:-1]
    return segment


@dataclass
class _Offer:
    """A product seen on a results page."""

    asin: str  # lower case, as it is clicked
    low: float  # low, high: its price range, in dollars
    high: float
    title: str
    read_pages: set[str] = field(default_factory=set)  # the sub-pages read so far
    text: str = ""  # of the sub-pages in `read_pages`
    values: tuple[str, ...] = ()  # option values that can be clicked
    chosen: tuple[str, ...] = ()  # values that the task names, in page order
    clashes: int = 0  # how many of `chosen` share their option with another one of them
    missing: frozenset[str] = frozenset()  # words of the task that are not in its text
    opened: bool = False


class ShopExpert:
    """A deterministic player of one episode of `max_steps` steps; see `experts.Expert`."""

    def __init__(self, *, max_steps: int = 15) -> None:
        self._remaining_steps = max_steps
        self._body = ""  # the task without its price cap
        self._cap = float("inf")
        self._request = ""  # the task without its options
        self._phrases: list[str] = []  # option values in the task
        self._stems: set[str] = set()  # the other words of the task
        self._attributes: list[str] = []  # attributes in the task
        self._offers: dict[str, _Offer] = {}
        self._open: _Offer | None = None
        self._clicked: list[str] = []
        self._final: _Offer | None = None
        self._last_action = ""

    def act(self, observation: Observation) -> str:
        self._last_action = self._choose_action(observation)
        return self._last_action

    def _choose_action(self, observation: Observation) -> str:
        clickable = []
        for action in observation.admissible or ():
            if action.startswith("click["):
                clickable.append(action[len("click[") : -1])
        # The task stands in every observation; it is read at the first one.
        if not self._body:
            self._read_task(observation.task)
        self._remaining_steps -= 1
        # The page is told by its buttons: texts of products may say anything.
        if "buy now" in clickable:
            return self._act_on_item(observation.text, clickable)
        if "next >" in clickable:
            return self._act_on_results(observation.text, clickable)
        if "< prev" in clickable:
            return self._act_on_sub_page(observation.text)
        return f"search[{self._write_query()}]"

    @property
    def choices(self) -> tuple[str, ...]:
        """The open item's clicks that choose the task's options."""
        if self._open is None:
            return ()
        return tuple(f"click[{value}]" for value in self._open.chosen)

    @property
    def thought(self) -> str:
        """The reason for the last action, in words."""
        argument = self._last_action.partition("[")[2][:-1]
        if self._last_action.startswith("search["):
            return "I search for what the task asks for: the product and the options that it names."
        if argument in self._offers:
            price = self._offers[argument].low
            return (
                f"{argument.upper()} fits the task best so far, and costs ${price:.2f}. I open it."
            )
        if argument in _SUB_PAGES and self._open is not None:
            phrases = ", ".join(_longest_phrases(self._open.missing))
            return f"The title does not say: {phrases}. I look for that in the {argument}."
        if self._last_action in self.choices:
            return f"The task asks for {argument}. I choose it."
        reasons = {
            "buy now": (
                "This is what the task asks for, and all options that it names are chosen. "
                "I buy it."
            ),
            "< prev": "I have seen enough here and go back.",
            "next >": "None of these fits. I look further.",
        }
        return reasons.get(argument, "")

    def retract(self) -> None:
        """Takes back the last action, which was not carried out."""
        if self._last_action in self.choices:
            self._clicked.pop()
        elif self._open is not None and self._last_action == f"click[{self._open.asin}]":
            self._open.opened = False
        elif self._open is not None:
            self._open.read_pages.discard(self._last_action[len("click[") : -1])

    def _read_task(self, task: str) -> None:
        """Splits the task into price cap, option values, attributes and other words."""
        cap = _CAP.search(task)
        if cap is not None:
            self._cap = float(cap.group(1))
        self._body = _CAP.sub("", task).strip()
        # The form of synthetic tasks. Human ones rarely have `name: value` in every part.
        request, _, option_text = self._body.partition(" with ")
        pairs = [pair.partition(": ") for pair in option_text.split(", and ")]
        if all(separator for _, separator, _ in pairs):  # a synthetic task: name: value
            self._phrases = [value for _, _, value in pairs]
        else:  # a human one: ".. in red, small"
            request = self._read_human_options()
        self._request = _OPENING.sub("", request)
        words = _word_set(self._request) - _FILLER
        self._stems = {word.removesuffix("s") for word in words}
        list_entries = re.split(r", (?:and )?| and ", self._request.strip().lower())[:-1]
        self._attributes = [
            entry for entry in list_entries if entry and not _word_set(entry) & _FILLER
        ]

    def _read_human_options(self) -> str:
        """Reads a human task's option values; returns the rest."""
        head, _, tail = self._body.strip(".").rpartition(" in ")
        if not head:
            self._phrases = []
            return tail
        option_text = _ENOUGH.split(tail)[0]
        self._phrases = [phrase.strip() for phrase in option_text.split(", ") if phrase]
        if not option_text:
            return head
        return self._body.replace(f" in {option_text}", " ")

    def _write_query(self) -> str:
        """The task's words without filler words, with the options twice.

        Few products of a kind have all options, so these count more.
        """
        # Filler words say nothing about the product, and BM25 would score them.
        words = [word for word in _WORD.findall(self._request.lower()) if word not in _FILLER]
        option_terms = _TERM.findall(" ".join(self._phrases))
        return " ".join([*words, *option_terms, *option_terms])

    def _act_on_results(self, text: str, clickable: list[str]) -> str:
        self._clicked = []  # leaving an item clears its options
        asins = [button for button in clickable if button not in _FIXED]
        self._read_offers(asins, _split_observation(text))
        # The choice is made: no further offer is looked at.
        if self._final is not None and self._final.asin in asins:
            return self._open_offer(self._final)
        fresh = []
        for asin in asins:
            offer = self._offers.get(asin)
            if offer is not None and not offer.opened:
                fresh.append(offer)
        # Results are sorted by relevance: the first one within the cap is the best.
        affordable = [offer for offer in fresh if offer.low <= self._cap]
        best_opened = self._find_best_opened()
        # Open, read one page and return, buy, and a click for each option.
        has_time = self._remaining_steps > 4 + len(self._phrases)
        if affordable and (best_opened is None or has_time):
            return self._open_offer(affordable[0])
        if best_opened is not None and best_opened.asin in asins:
            self._final = best_opened
            return self._open_offer(best_opened)
        if self._remaining_steps > 6 and best_opened is None:
            return "click[next >]"
        return self._open_offer(fresh[0]) if fresh else "click[back to search]"

    def _read_offers(self, asins: list[str], segments: list[str]) -> None:
        """Notes the products of a results page, where asin, title and price follow one another."""
        for asin in asins:
            if asin in self._offers or asin.upper() not in segments:
                continue
            row = segments.index(asin.upper())
            # A slice, because the segments may end behind the title.
            price_text = " ".join(segments[row + 2 : row + 3])
            prices = [float(price) for price in _PRICE.findall(price_text)] or [0.0]
            self._offers[asin] = _Offer(asin, prices[0], prices[-1], segments[row + 1])

    def _find_best_opened(self) -> _Offer | None:
        opened = [offer for offer in self._offers.values() if offer.opened]
        return min(opened, key=self._rate_offer, default=None)

    def _rate_offer(self, offer: _Offer) -> tuple[int, int, bool]:
        """The cost of an offer, lower is better: missing options, missing words, then the price.

        The price counts if the upper end of its range is above the task's cap.
        """
        missing = len(offer.missing) + 2 * (offer.low > self._cap)
        return self._count_missing_options(offer), missing, offer.high > self._cap

    def _count_missing_options(self, offer: _Offer) -> int:
        return offer.clashes + sum(phrase not in offer.values for phrase in self._phrases)

    def _open_offer(self, offer: _Offer) -> str:
        self._open = offer
        self._clicked = []
        offer.opened = True
        return f"click[{offer.asin}]"

    def _act_on_sub_page(self, text: str) -> str:
        if self._open is not None:
            segments = _split_observation(text)
            content = [segment for segment in segments if segment not in (BACK, PREVIOUS)]
            self._open.text += " " + " ".join(content)
        return "click[< prev]"

    def _act_on_item(self, text: str, clickable: list[str]) -> str:
        segments = _split_observation(text)
        offer = self._find_open_offer(segments)
        if offer is None:
            return "click[< prev]"
        if not offer.values:
            # Once: a later visit would see the same labels.
            offer.values = tuple(button for button in clickable if button not in _FIXED)
            self._choose_values(offer, segments)
        self._find_missing_words(offer)
        open_choices = [value for value in offer.chosen if value not in self._clicked]
        if self._final is not offer:
            detour = self._find_detour(offer, clickable, len(open_choices))
            if detour:
                return detour
            self._final = offer
        if open_choices and self._remaining_steps >= 1:
            self._clicked.append(open_choices[0])
            return f"click[{open_choices[0]}]"
        return "click[buy now]"

    def _find_detour(self, offer: _Offer, clickable: list[str], choices: int) -> str:
        """Finds an action that may lead to a better purchase.

        Returns "" if this offer is to be bought.

        Args:
          offer: Offer of the open page.
          clickable: Arguments of the page's clicks.
          choices: Number of options that are still to be chosen.
        """
        spare_steps = self._remaining_steps - choices  # after a purchase of this offer
        if not self._count_missing_options(offer) and offer.missing and spare_steps >= 2:
            for page in _SUB_PAGES:
                unread = page not in offer.read_pages and page in clickable
                if unread and len(offer.text) < _TOO_SHORT:
                    offer.read_pages.add(page)
                    return f"click[{page}]"
        is_perfect = not any(self._rate_offer(offer))
        has_time = spare_steps >= 3 + len(self._phrases)
        if not is_perfect and has_time and self._has_unopened_offer():
            return "click[< prev]"
        best = self._find_best_opened()
        is_better = best is not None and self._rate_offer(best) < self._rate_offer(offer)
        if is_better and spare_steps >= 3:
            self._final = best
            return "click[< prev]"
        return ""

    def _find_open_offer(self, segments: list[str]) -> _Offer | None:
        """Returns the open page's offer; None for one that was on no results page."""
        if self._open is not None and self._open.title in segments:
            return self._open
        self._open = None
        for offer in self._offers.values():
            if offer.title in segments:
                self._open = offer
                offer.opened = True
                break
        return self._open

    def _has_unopened_offer(self) -> bool:
        return any(not offer.opened and offer.low <= self._cap for offer in self._offers.values())

    def _find_missing_words(self, offer: _Offer) -> None:
        """Finds task words and attributes missing in the offer's text."""
        text = f"{offer.title} {offer.text}".lower()
        missing_attributes = {entry for entry in self._attributes if entry not in text}
        offer.missing = frozenset(self._stems - _word_stems(text)) | missing_attributes

    def _choose_values(self, offer: _Offer, segments: list[str]) -> None:
        """Finds the values to click, one for each task option."""
        groups = _group_values(offer.values, segments)
        chosen = [value for value in self._phrases if value in offer.values]
        # Values that the task names literally go first; of others the longest that it mentions.
        exact = set(chosen)
        body = f" {self._body.strip('.').lower()} "
        for group in groups:
            if exact.isdisjoint(group):
                mentions = [value for value in group if _mentions(body, value)]
                if mentions:
                    chosen.append(max(mentions, key=len))
                    exact.add(chosen[-1])
        offer.chosen = tuple(dict.fromkeys(chosen))
        owners: dict[str, int | str] = {}  # of a value in several groups, the last one is clicked
        for number, group in enumerate(groups):
            owners.update(dict.fromkeys(group, number))
        options = {owners.get(value, value) for value in offer.chosen}
        offer.clashes = len(offer.chosen) - len(options)


def _longest_phrases(phrases: frozenset[str]) -> list[str]:
    """The phrases that are not inside another one, sorted."""
    longest = []
    for phrase in sorted(phrases):
        if not any(phrase in longer for longer in phrases - {phrase}):
            longest.append(phrase)
    return longest


def _group_values(values: tuple[str, ...], segments: list[str]) -> list[list[str]]:
    """Groups the values by option: an option's values follow one another, after its name."""
    groups: list[list[str]] = []
    inside = False
    for segment in segments:
        if segment in values:
            if not inside:
                groups.append([])
            groups[-1].append(segment)
        inside = segment in values
    return groups


def _mentions(body: str, value: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", body) is not None
