"""The shop's pages as lists of text nodes, and the two kinds of observation made from them.

A node is (kind, text), with the blanks of the page. Sub-pages: description, features, reviews, attributes of an item.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from gigpo_jax.envs.webshop.catalogue.sources import Product

Kind = Literal["text", "button", "label", "product"]
Node = tuple[Kind, str]

SEPARATOR = " [SEP] "
SEARCH, BACK, PREVIOUS, NEXT, BUY = "Search", "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
PER_PAGE = 10
_ASCII_BLANKS = " \n\t\f\r"


def index_page(instruction: str) -> list[Node]:
    return [("text", "WebShop"), ("text", "Instruction: "), ("text", instruction), ("button", SEARCH)]


def _header(instruction: str, *buttons: str) -> list[Node]:
    return [("text", "Instruction:"), ("text", instruction), ("button", BACK), *(("button", b) for b in buttons)]


def results_page(instruction: str, products: Sequence[Product], page: int, total: int) -> list[Node]:
    """Up to ten products; `page` counts from 1, `total` is the number of products found."""
    nodes = _header(instruction)
    nodes.append(("text", f"Page {page} (Total results: {total})"))
    if page > 1:
        nodes.append(("button", PREVIOUS))
    nodes.append(("button", NEXT))
    for product in products:
        nodes += [("product", product.asin), ("text", product.title), ("text", product.price_tag)]
    return nodes


def item_page(instruction: str, product: Product, *, show_attributes: bool) -> list[Node]:
    nodes = _header(instruction, PREVIOUS)
    for name, values in product.options.items():
        nodes.append(("text", name))
        nodes += [("label", value) for value in values]
    nodes += [("text", product.title), ("text", f"Price: {product.price_tag}"), ("text", "Rating: N.A.")]
    nodes += [("button", name) for name in (SUB_PAGES if show_attributes else SUB_PAGES[:3])]
    nodes.append(("button", BUY))
    return nodes


def sub_page(instruction: str, product: Product, name: str) -> list[Node]:
    nodes = _header(instruction, PREVIOUS)
    if name == "Description":
        nodes.append(("text", product.description))
    elif name == "Features":
        nodes += [("text", f" {bullet}") for bullet in product.bullets]
    elif name == "Attributes":
        nodes += [("text", f" {attribute}") for attribute in product.attributes]
        nodes += [("text", product.category), ("text", product.query), ("text", product.product_category)]
    return nodes


def script_json(value: Mapping[str, str]) -> str:
    """JSON as in the original's pages: sorted keys, ASCII, HTML characters escaped."""
    text = json.dumps(value, sort_keys=True)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def done_page(asin: str, options: Mapping[str, str], reward: float) -> list[Node]:
    """The page after a purchase; the original leaves most of its lines empty."""
    bought = ["asin", asin, "options", script_json(options)]
    for name in ("attrs", "category", "query", "product category"):
        bought += [name, "None"]
    target = ["asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"]
    lines = ["Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"]
    lines += ["Purchased", *bought, "Target", *target, "Goal ", "None"]
    lines += ["Reward", "Your score (min 0.0, max 1.0)", str(reward), "Reward Details ", "None"]
    return [("text", line) for line in lines]


def visible(nodes: Iterable[Node]) -> list[Node]:
    """The text nodes of the page's HTML.

    An empty text gives no node; a blank one is dropped if it has a line break, and is one space otherwise.
    """
    shown = []
    for kind, text in nodes:
        if not text:
            continue
        if not text.strip(_ASCII_BLANKS):
            if "\n" in text:
                continue
            text = " "
        shown.append((kind, text))
    return shown


def plain_text(nodes: Iterable[Node]) -> str:
    """The `text` observation: the stripped nodes, joined."""
    return SEPARATOR.join(text.strip() for _, text in visible(nodes))


def rich_text(nodes: Iterable[Node], *, url: str, visited: Iterable[str]) -> str:
    """The `text_rich` observation: one node a line, with marks around clickables.

    Args:
      nodes: the page.
      url: its address; an option counts as chosen if it is there in double quotes.
      visited: asins of the pages opened since the index page.
    """
    visited = set(visited)
    clicked: list[str] = []
    lines: list[str] = []
    for kind, text in visible(nodes):
        if kind == "button":
            lines.append(f"[button] {text} [button_]\n")
        elif kind == "label" and f'"{text}"' in url:
            lines.append(f"  [clicked button] {text} [clicked button_]\n")
            clicked.append(f"You have clicked {text}.\n")
        elif kind == "label":
            lines.append(f"  [button] {text} [button_]\n")
        elif kind == "product":
            mark = "clicked button" if text in visited else "button"
            lines.append(f"\n[{mark}] {text} [{mark}_]\n")
        else:
            lines.append(f"{text}\n")
    return "".join(reversed(clicked)) + "".join(lines)
