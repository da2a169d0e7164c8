"""The shop's pages as lists of text nodes, and the two kinds of observation made from them.

A node is (kind, text), with the blanks of the page. Sub-pages are the description, features,
reviews and attributes of an item.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from gigpo_jax.envs.webshop.catalogue.sources import Product

Kind = Literal["text", "button", "label", "product"]
Node = tuple[Kind, str]

SEPARATOR = " [SEP] "
SEARCH = "Search"
BACK = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
PER_PAGE = 10
_ASCII_BLANKS = " \n\t\f\r"


def index_page(instruction: str) -> list[Node]:
    """The page with the search bar."""
    return [
        ("text", "WebShop"),
        ("text", "Instruction: "),
        ("text", instruction),
        ("button", SEARCH),
    ]


def _page_header(instruction: str, *buttons: str) -> list[Node]:
    nodes: list[Node] = [("text", "Instruction:"), ("text", instruction), ("button", BACK)]
    for button in buttons:
        nodes.append(("button", button))
    return nodes


def results_page(
    instruction: str, products: Sequence[Product], page: int, total: int
) -> list[Node]:
    """A page of results.

    Args:
      instruction: Task in words.
      products: Up to ten products.
      page: Number of the page, from 1.
      total: Number of products of the whole search.
    """
    nodes = _page_header(instruction)
    nodes.append(("text", f"Page {page} (Total results: {total})"))
    if page > 1:
        nodes.append(("button", PREVIOUS))
    # On the last page, too: the original has no upper bound.
    nodes.append(("button", NEXT))
    for product in products:
        nodes += [("product", product.asin), ("text", product.title), ("text", product.price_tag)]
    return nodes


def item_page(instruction: str, product: Product, *, show_attributes: bool) -> list[Node]:
    """The page of a product, with its options."""
    nodes = _page_header(instruction, PREVIOUS)
    # Chosen options are not marked: in text mode the original does not show them.
    for name, values in product.options.items():
        nodes.append(("text", name))
        nodes += [("label", value) for value in values]
    nodes += [
        ("text", product.title),
        ("text", f"Price: {product.price_tag}"),
        ("text", "Rating: N.A."),
    ]
    for name in SUB_PAGES:
        if name != "Attributes" or show_attributes:
            nodes.append(("button", name))
    nodes.append(("button", BUY))
    return nodes


def sub_page(instruction: str, product: Product, name: str) -> list[Node]:
    """A sub-page of a product; the original's reviews are empty."""
    nodes = _page_header(instruction, PREVIOUS)
    if name == "Description":
        nodes.append(("text", product.description))
    elif name == "Features":
        # The blank before each line is the original's: an empty bullet becomes an empty segment.
        nodes += [("text", f" {bullet}") for bullet in product.bullets]
    elif name == "Attributes":
        nodes += [("text", f" {attribute}") for attribute in product.attributes]
        nodes += [
            ("text", product.category),
            ("text", product.query),
            ("text", product.product_category),
        ]
    return nodes


def script_json(value: Mapping[str, str]) -> str:
    """Writes JSON as in the original's pages: sorted keys, ASCII, HTML characters escaped."""
    text = json.dumps(value, sort_keys=True)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def done_page(asin: str, options: Mapping[str, str], reward: float) -> list[Node]:
    """Returns the page after a purchase, most of whose lines are empty, as in the original."""
    bought = ["asin", asin, "options", script_json(options)]
    for name in ("attrs", "category", "query", "product category"):
        bought += [name, "None"]
    target = [
        "asin",
        "options",
        "attrs",
        "price upper",
        "instuction text",
        "category",
        "product category",
        "query",
    ]
    lines = [
        "Thank you for shopping with us!",
        "Your code: ",
        "None",
        " (Paste it in your MTurk interface.)",
    ]
    lines += ["Purchased", *bought, "Target", *target, "Goal ", "None"]
    lines += ["Reward", "Your score (min 0.0, max 1.0)", str(reward), "Reward Details ", "None"]
    return [("text", line) for line in lines]


def visible_nodes(nodes: Iterable[Node]) -> list[Node]:
    """The text nodes of the page's HTML.

    An empty text gives no node. A blank one is dropped if it has a line break, and is one space
    otherwise.
    """
    visible = []
    for kind, text in nodes:
        if not text:
            continue
        # ASCII blanks only, as in the original's HTML parser.
        if not text.strip(_ASCII_BLANKS):
            if "\n" in text:
                continue
            text = " "
        visible.append((kind, text))
    return visible


def plain_text(nodes: Iterable[Node]) -> str:
    """The `text` observation: the stripped nodes, joined."""
    return SEPARATOR.join(text.strip() for _, text in visible_nodes(nodes))


def rich_text(nodes: Iterable[Node], *, url: str, visited: Iterable[str]) -> str:
    """Writes the `text_rich` observation, one node a line, with marks around clickables.

    Args:
      nodes: Nodes of the page.
      url: Address of the page; an option counts as chosen if it is there in double quotes.
      visited: Asins of the pages opened since the index page.
    """
    visited_asins = set(visited)
    clicked: list[str] = []
    lines: list[str] = []
    for kind, text in visible_nodes(nodes):
        if kind == "button":
            lines.append(f"[button] {text} [button_]\n")
        elif kind == "label" and f'"{text}"' in url:
            lines.append(f"  [clicked button] {text} [clicked button_]\n")
            clicked.append(f"You have clicked {text}.\n")
        elif kind == "label":
            lines.append(f"  [button] {text} [button_]\n")
        elif kind == "product":
            mark = "clicked button" if text in visited_asins else "button"
            lines.append(f"\n[{mark}] {text} [{mark}_]\n")
        else:
            lines.append(f"{text}\n")
    # The original puts each line before the text so far, so the last one comes first.
    return "".join(reversed(clicked)) + "".join(lines)
