"""A session in the shop: the open page, the chosen options, and the effects of actions."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue, Recent
from gigpo_jax.envs.webshop.catalogue.goals import Goal
from gigpo_jax.envs.webshop.catalogue.sources import Product
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.pages import Node
from gigpo_jax.envs.webshop.engine.reward import Score, score
from gigpo_jax.errors import InputError

OBSERVATIONS = ("text", "text_rich")
_BASE = "http://127.0.0.1:3000"
_PAGE_NAMES = ("search_results", "item_page", "item_sub_page", "done")
_SUB_PAGES = {name.lower(): name for name in pages.SUB_PAGES}


@dataclass(frozen=True, slots=True)
class Page:
    """The observation of a session."""

    text: str  # the observation
    available: dict[str, Any]  # `has_search_bar` and `clickables` (arguments of `click[..]`, in the page's order)
    reward: float = 0.0  # of the last action
    done: bool = False  # whether the last action was a purchase


@dataclass(frozen=True, slots=True)
class _View:
    """A page without its instruction: the part that is the same for every goal, and cached."""

    nodes: tuple[Node, ...]
    tail: str  # the `text` observation after the instruction
    clickables: dict[str, str | None]  # clickable -> the option's name; None for buttons and products
    clicks: tuple[str, ...]  # the clickables as actions


def _view(nodes: list[Node], head: int = 0, owners: Sequence[str] = ()) -> _View:
    """The view of a page made with an empty instruction.

    `head` nodes, up to the task, are not in its tail; `owners` are the options of its labels, in order.
    """
    clickables: dict[str, str | None] = {}
    for kind in ("button", "product"):
        clickables.update((text.lower(), None) for have, text in nodes if have == kind)
    clickables.update(zip((text for have, text in nodes if have == "label"), owners, strict=True))
    return _View(
        tuple(nodes), pages.plain_text(nodes[head:]), clickables, tuple(f"click[{what}]" for what in clickables)
    )


def split_action(action: str) -> tuple[str, str]:
    """`name[argument]` -> name and argument in lower case; ("", "") for anything else. Takes linear time.

    The same as the original's `re.match(r"(.+)\\[(.+)\\]")`: of several brackets in the first line the last pair with a
    text inside counts.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return (line[:start], line[start + 1 : end].lower()) if start > 0 else ("", "")


class Session:
    """Plays episodes on a catalogue; see `reset` and `step`.

    An action without meaning on the page (or that crashes the original) has no effect: the page is the same, the reward
    0. `score` is None before a purchase; `options` has the chosen values of the current product.

    Args:
      catalogue: the shop.
      observation: "text" or "text_rich".
      show_attributes: whether items have an Attributes page.
      seed: of the goals drawn by `reset(None)`.
    """

    def __init__(
        self, catalogue: Catalogue, *, observation: str = "text", show_attributes: bool = False, seed: int | None = None
    ) -> None:
        if observation not in OBSERVATIONS:
            raise InputError(f"observation={observation!r}: choose one of {', '.join(OBSERVATIONS)}")
        self.catalogue = catalogue
        self._rich = observation == "text_rich"
        self._attributes = show_attributes
        self._rng = random.Random(seed)
        self._views: Recent[_View] = Recent(1024)
        self._goal: Goal | None = None
        self._name = ""

    @property
    def goal(self) -> Goal:
        if self._goal is None:
            raise RuntimeError("call reset() before asking a session for its goal or taking a step")
        return self._goal

    def reset(self, goal_index: int | None = None) -> Page:
        """Starts an episode with a goal of the catalogue's list; None draws one by weight."""
        if goal_index is None:
            goal_index = self.catalogue.draw_goal(self._rng)
        self._goal = self.catalogue.goal(goal_index)
        self._name = str(goal_index)
        self.score: Score | None = None
        self._open_index()
        return self._page()

    def step(self, action: str) -> Page:
        """Takes an action: `search[words]` or `click[what]`."""
        self.goal  # noqa: B018  raises without an episode
        name, argument = split_action(action)
        if name == "search":
            self._search(argument.split(" "), 1)
        elif name == "click" and argument != "search" and argument in self._shown.clickables:
            if argument == pages.BUY.lower():
                return self._buy()
            self._click(argument)
        return self._page()

    @property
    def product(self) -> Product | None:
        """The product of the open item page, sub-page or done page."""
        return None if self._row is None else self.catalogue.product(self._row)

    def nodes(self) -> list[Node]:
        nodes = list(self._shown.nodes)
        if self.place == "index":
            nodes[2] = ("text", self.goal.instruction)
        elif self.place != "done":
            nodes[1] = ("text", self.goal.instruction)
        return nodes

    @property
    def tail(self) -> str:
        """The `text` observation after the instruction; on the done page, all of it."""
        return self._shown.tail

    @property
    def clicks(self) -> tuple[str, ...]:
        return self._shown.clicks

    def _page(self, reward: float = 0.0, done: bool = False) -> Page:
        if self._rich:
            text = pages.rich_text(self.nodes(), url=self.url, visited=self._visited)
        else:
            text = self.plain_text()
        available = {"has_search_bar": self.place == "index", "clickables": list(self._shown.clickables)}
        return Page(text, available, reward, done)

    def plain_text(self) -> str:
        """The `text` observation of the open page, whatever the session's kind of observation."""
        if self.place == "done":
            return self._shown.tail
        head = "WebShop [SEP] Instruction:" if self.place == "index" else "Instruction:"
        task = pages.plain_text([("text", self.goal.instruction)])
        if not task and not pages.visible([("text", self.goal.instruction)]):
            return head + pages.SEPARATOR + self._shown.tail
        return head + pages.SEPARATOR + task + pages.SEPARATOR + self._shown.tail

    def _open(self, place: str, view: _View, url: str) -> None:
        self.place, self._shown, self.url = place, view, f"{_BASE}/{url}"

    def _open_index(self) -> None:
        self._keywords: list[str] = []
        self._number = 1
        self._row: int | None = None
        self._asin = ""
        self._visited: set[str] = set()
        self.options: dict[str, str] = {}
        view = self._views.get_or("index", lambda: _view(pages.index_page(""), 3))
        self._open("index", view, self._name)

    def _search(self, keywords: list[str], number: int) -> None:
        rows = self.catalogue.search(keywords)
        if rows is None:
            return
        joined = "+".join(keywords)
        self._keywords, self._number, self._row, self._asin, self.options = keywords, number, None, "", {}

        def make() -> _View:
            first = (number - 1) * pages.PER_PAGE
            found = [self.catalogue.product(int(row)) for row in rows[first : first + pages.PER_PAGE]]
            return _view(pages.results_page("", found, number, len(rows)), 2)

        view = self._views.get_or((" ".join(keywords), number), make)
        self._open("results", view, f"search_results/{self._name}/{joined}/{number}")

    def _click(self, what: str) -> None:
        """Follows a clickable other than Buy Now; the order of the tests is the original's."""
        if what == pages.BACK.lower():
            self._open_index()
            return
        page_name = next((name for name in _PAGE_NAMES if name in self.url), "")
        if what == pages.NEXT.lower() and page_name == "search_results":
            self._search(self._keywords, self._number + 1)
        elif what == pages.PREVIOUS.lower() and page_name == "search_results":
            self._search(self._keywords, self._number - 1)
        elif what == pages.PREVIOUS.lower() and page_name == "item_page":
            self._search(self._keywords, self._number)
        elif what in _SUB_PAGES:
            self._open_sub_page(_SUB_PAGES[what])
        else:
            self._open_item(what)

    def _open_item(self, what: str) -> None:
        option = self._shown.clickables[what]
        if option is not None:
            self.options[option.lower()] = what
        elif self.place == "results":
            asin = what.upper()
            row = self.catalogue.row(asin)
            if row is None:
                return
            self._row, self._asin = row, asin
            self._visited.add(asin)
        row = self._row
        if row is None:
            return

        def make() -> _View:
            product = self.catalogue.product(row)
            owners = [name for name, values in product.options.items() for value in values]
            return _view(pages.item_page("", product, show_attributes=self._attributes), 2, owners)

        view = self._views.get_or(row, make)
        chosen = json.dumps(self.options)
        self._open(
            "item", view, f"item_page/{self._name}/{self._asin}/{'+'.join(self._keywords)}/{self._number}/{chosen}"
        )

    def _open_sub_page(self, name: str) -> None:
        row = self._row
        if row is None:
            return
        view = self._views.get_or((row, name), lambda: _view(pages.sub_page("", self.catalogue.product(row), name), 2))
        place = f"{self._name}/{self._asin}/{'+'.join(self._keywords)}/{self._number}/{name}/{self.options}"
        self._open("sub", view, f"item_sub_page/{place}")

    def _buy(self) -> Page:
        if self._row is None:
            return self._page()
        product, goal = self.catalogue.product(self._row), self.goal
        self.score = score(
            product,
            self.catalogue.price(self._row),
            self.options,
            goal,
            nouns=self.catalogue.nouns(product.title),
            goal_nouns=self.catalogue.nouns(goal.name),
        )
        view = _view(pages.done_page(self._asin, self.options, self.score.total))
        self._open("done", view, f"done/{self._name}/{self._asin}/{self.options}")
        return self._page(self.score.total, True)
