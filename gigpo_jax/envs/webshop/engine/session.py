"""A session in the shop: the open page, the chosen options, and the effects of actions."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue, RecentValues
from gigpo_jax.envs.webshop.catalogue.goals import ShoppingGoal
from gigpo_jax.envs.webshop.catalogue.sources import Product
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.pages import Node
from gigpo_jax.envs.webshop.engine.reward import Score, score_purchase

OBSERVATIONS = ("text", "text_rich")
_BASE = "http://127.0.0.1:3000"
_PAGE_NAMES = ("search_results", "item_page", "item_sub_page", "done")
_SUB_PAGES = {name.lower(): name for name in pages.SUB_PAGES}


@dataclass(frozen=True, slots=True)
class Page:
    """The observation of a session."""

    text: str  # the observation
    # `has_search_bar` and `clickables` (arguments of `click[..]`, in the page's order)
    available: dict[str, Any]
    reward: float = 0.0  # of the last action
    done: bool = False  # whether the last action was a purchase


@dataclass(frozen=True, slots=True)
class _View:
    """A page without its instruction, which is the same for every goal, and cached."""

    nodes: tuple[Node, ...]
    tail: str  # the `text` observation after the instruction
    clickables: dict[str, str | None]  # clickable -> the option's name; None if it is no option
    clicks: tuple[str, ...]  # the clickables as actions


def _make_view(nodes: list[Node], head: int = 0, owners: Sequence[str] = ()) -> _View:
    """The view of a page made with an empty instruction.

    Args:
      nodes: Nodes of the page.
      head: Number of nodes up to the task, which are not in the tail.
      owners: Option names of the page's labels, in order.
    """
    # The original lists buttons first, then products, then options; a later option of the same
    # text replaces the owner but keeps the place.
    clickables: dict[str, str | None] = {}
    for clickable_kind in ("button", "product"):
        for kind, text in nodes:
            if kind == clickable_kind:
                clickables[text.lower()] = None
    labels = [text for kind, text in nodes if kind == "label"]
    clickables.update(zip(labels, owners, strict=True))
    clicks = tuple(f"click[{clickable}]" for clickable in clickables)
    return _View(tuple(nodes), pages.plain_text(nodes[head:]), clickables, clicks)


def split_brackets(action: str) -> tuple[str, str]:
    """Splits `name[argument]` in linear time.

    The argument is returned in lower case. The split is the same as the original's
    `re.match(r"(.+)\\[(.+)\\]")`: of several brackets in the first line the last pair with a text
    inside counts. ("", "") for anything else.
    """
    # "." of the original's pattern does not match a line break.
    line = action.partition("\n")[0]
    # The pattern is greedy, and on hostile text with many brackets a backtracking match takes time
    # that grows with the square of the length.
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    if start <= 0:
        return "", ""
    return line[:start], line[start + 1 : end].lower()


class Session:
    """Plays episodes on a catalogue; see `reset` and `step`.

    An action without meaning on the page (or that crashes the original) has no effect: the page is
    the same, the reward 0.

    Args:
      catalogue: Catalogue of the shop.
      observation: "text" or "text_rich".
      show_attributes: Whether items have an Attributes page.
      seed: Seed of the goals drawn by `reset(None)`.

    Attributes:
      place: Kind of the open page: "index", "results", "item", "sub" or "done".
      url: Address of the open page in the original.
      options: Chosen values of the current product.
      score: Score of the purchase; None before it.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        observation: str = "text",
        show_attributes: bool = False,
        seed: int | None = None,
    ) -> None:
        if observation not in OBSERVATIONS:
            raise InputError(
                f"must be one of {', '.join(OBSERVATIONS)}",
                key="observation",
                value=repr(observation),
            )
        self.catalogue = catalogue
        self._rich = observation == "text_rich"
        self._show_attributes = show_attributes
        self._rng = random.Random(seed)
        self._views: RecentValues[_View] = RecentValues(1024)
        self._goal: ShoppingGoal | None = None
        self._name = ""

    @property
    def goal(self) -> ShoppingGoal:
        """The goal of the episode; RuntimeError before the first `reset`."""
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
        return self._observe()

    def step(self, action: str) -> Page:
        """Takes an action: `search[words]` or `click[clickable]`."""
        self.goal  # noqa: B018  raises without an episode
        name, argument = split_brackets(action)
        if name == "search":
            self._search(argument.split(" "), 1)
        elif name == "click" and argument != "search" and argument in self._view.clickables:
            if argument == pages.BUY.lower():
                return self._buy()
            self._click(argument)
        return self._observe()

    @property
    def product(self) -> Product | None:
        """The product of the open item page, sub-page or done page; None on other pages."""
        return None if self._row is None else self.catalogue.product(self._row)

    def nodes(self) -> list[Node]:
        """The nodes of the open page, with its instruction."""
        nodes = list(self._view.nodes)
        if self.place == "index":
            nodes[2] = ("text", self.goal.instruction)
        elif self.place != "done":
            nodes[1] = ("text", self.goal.instruction)
        return nodes

    @property
    def tail(self) -> str:
        """The `text` observation after the instruction; on the done page, all of it."""
        return self._view.tail

    @property
    def state(self) -> str:
        """All that the goal's later pages and rewards depend on."""
        content: list[object] = [self.place, self._page_number, self._view.tail, self._asin]
        if self._keywords:
            # Words that find the same products are the same search: only its products come back.
            rows = self.catalogue.search(self._keywords)
            assert rows is not None  # a search without results does not change the page
            content.append(hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest())
            # Clicks look for these names in the whole address.
            words = " ".join(self._keywords)
            content.append([name for name in _PAGE_NAMES if name in words])
        content.append(self.options)
        if self._rich:  # its marks depend on earlier pages and on quotes in the address
            content += [sorted(self._visited), self._keywords]
        return json.dumps(content, sort_keys=True)

    @property
    def clicks(self) -> tuple[str, ...]:
        """The clicks that the open page allows, as actions."""
        return self._view.clicks

    def _observe(self, reward: float = 0.0, done: bool = False) -> Page:
        if self._rich:
            text = pages.rich_text(self.nodes(), url=self.url, visited=self._visited)
        else:
            text = self.plain_text()
        available = {
            "has_search_bar": self.place == "index",
            "clickables": list(self._view.clickables),
        }
        return Page(text, available, reward, done)

    def plain_text(self) -> str:
        """Returns the open page as a `text` observation, whatever kind the session observes."""
        if self.place == "done":
            return self._view.tail
        head = "WebShop [SEP] Instruction:" if self.place == "index" else "Instruction:"
        instruction: list[Node] = [("text", self.goal.instruction)]
        if not pages.visible_nodes(instruction):
            return head + pages.SEPARATOR + self._view.tail
        task = pages.plain_text(instruction)
        return head + pages.SEPARATOR + task + pages.SEPARATOR + self._view.tail

    def _open(self, place: str, view: _View, url: str) -> None:
        self.place = place
        self._view = view
        self.url = f"{_BASE}/{url}"

    def _open_index(self) -> None:
        self._keywords: list[str] = []
        self._page_number = 1
        self._row: int | None = None
        self._asin = ""
        self._visited: set[str] = set()
        self.options: dict[str, str] = {}
        view = self._views.get_or("index", lambda: _make_view(pages.index_page(""), 3))
        self._open("index", view, self._name)

    def _search(self, keywords: list[str], page_number: int) -> None:
        # A search that the original cannot run leaves the page as it is.
        rows = self.catalogue.search(keywords)
        if rows is None:
            return
        # A search leaves the item, and with it the chosen options.
        self._keywords = keywords
        self._page_number = page_number
        self._row = None
        self._asin = ""
        self.options = {}

        def make_results() -> _View:
            first = (page_number - 1) * pages.PER_PAGE
            page_rows = rows[first : first + pages.PER_PAGE]
            products = [self.catalogue.product(int(row)) for row in page_rows]
            return _make_view(pages.results_page("", products, page_number, len(rows)), 2)

        # Views have no instruction: later episodes with other goals use them again.
        view = self._views.get_or((" ".join(keywords), page_number), make_results)
        url = f"search_results/{self._name}/{'+'.join(keywords)}/{page_number}"
        self._open("results", view, url)

    def _click(self, clickable: str) -> None:
        """Follows a clickable other than Buy Now, with tests in the order of the original."""
        if clickable == pages.BACK.lower():
            self._open_index()
            return
        # The original looks for names in the whole address, keywords included.
        page_name = next((name for name in _PAGE_NAMES if name in self.url), "")
        if clickable == pages.NEXT.lower() and page_name == "search_results":
            self._search(self._keywords, self._page_number + 1)
        elif clickable == pages.PREVIOUS.lower() and page_name == "search_results":
            self._search(self._keywords, self._page_number - 1)
        elif clickable == pages.PREVIOUS.lower() and page_name == "item_page":
            self._search(self._keywords, self._page_number)
        elif clickable in _SUB_PAGES:
            self._open_sub_page(_SUB_PAGES[clickable])
        else:
            self._open_item(clickable)

    def _open_item(self, clickable: str) -> None:
        option = self._view.clickables[clickable]
        if option is not None:
            # Before the page is opened: its address has the chosen options.
            self.options[option.lower()] = clickable
        elif self.place == "results":
            asin = clickable.upper()
            row = self.catalogue.row(asin)
            if row is None:
                return
            self._row = row
            self._asin = asin
            self._visited.add(asin)
        open_row = self._row
        if open_row is None:
            return

        def make_item() -> _View:
            product = self.catalogue.product(open_row)
            # One name for each value, in the order of the page's labels.
            owners: list[str] = []
            for name, values in product.options.items():
                owners += [name] * len(values)
            nodes = pages.item_page("", product, show_attributes=self._show_attributes)
            return _make_view(nodes, 2, owners)

        view = self._views.get_or(open_row, make_item)
        path = f"{self._name}/{self._asin}/{'+'.join(self._keywords)}/{self._page_number}"
        self._open("item", view, f"item_page/{path}/{json.dumps(self.options)}")

    def _open_sub_page(self, name: str) -> None:
        row = self._row
        if row is None:
            return

        def make_sub_page() -> _View:
            return _make_view(pages.sub_page("", self.catalogue.product(row), name), 2)

        view = self._views.get_or((row, name), make_sub_page)
        path = f"{self._name}/{self._asin}/{'+'.join(self._keywords)}/{self._page_number}"
        self._open("sub", view, f"item_sub_page/{path}/{name}/{self.options}")

    def _buy(self) -> Page:
        if self._row is None:
            return self._observe()
        product = self.catalogue.product(self._row)
        goal = self.goal
        self.score = score_purchase(
            product,
            self.catalogue.price(self._row),
            self.options,
            goal,
            nouns=self.catalogue.nouns(product.title),
            goal_nouns=self.catalogue.nouns(goal.name),
        )
        view = _make_view(pages.done_page(self._asin, self.options, self.score.total))
        self._open("done", view, f"done/{self._name}/{self._asin}/{self.options}")
        return self._observe(self.score.total, True)
