"""Finds and reads the files of a catalogue, and turns their entries into products."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TextIO

from gigpo_jax.core.errors import InputError

PREPARE = "gigpo envs webshop prepare"
GENERATE = "gigpo envs webshop generate --out DIR --products 1000 --seed 0"
_NEEDED = {
    "asin": "a string",
    "name": "a string",
    "category": "a string",
    "query": "a string",
    "product_category": "a string",
    "full_description": "a string",
    "small_description": "a list of strings or a string",
    "customization_options": "an object or null",
    "images": "a list",
}
_CHUNK = 1 << 20  # characters read at a time, so that large files need little memory


@dataclass(frozen=True)
class Sources:
    """The files of one catalogue."""

    products: Path  # `items_shuffle*.json`
    instructions: Path  # `items_ins_v2*.json`
    human: Path | None  # `items_human_ins.json`; None if missing: then there are no human goals

    def paths(self) -> tuple[Path, ...]:
        """The files that exist."""
        if self.human is None:
            return self.products, self.instructions
        return self.products, self.instructions, self.human


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the shop."""

    asin: str  # its identifier, at most 10 characters
    title: str
    category: str  # category, query and product_category: where the shop files it
    query: str  # lower case
    product_category: str
    description: str
    bullets: tuple[str, ...]  # the feature lines
    pricing: tuple[float, ...]  # one price, or two (a range), in dollars
    options: dict[str, tuple[str, ...]]  # option name -> its values, in the order of the file
    attributes: tuple[str, ...]  # its annotations
    image: str  # URL of its picture, or ""

    @property
    def price_tag(self) -> str:
        """`$a`, or `$a to $b`, as Python prints floats."""
        return " to ".join(f"${price}" for price in self.pricing)

    def record(self) -> list[Any]:
        """The fields in their order, as JSON can hold them."""
        return [getattr(self, name) for name in self.__slots__]

    @staticmethod
    def from_record(record: list[Any]) -> "Product":
        """The product of a `record`."""
        fields = dict(zip(Product.__slots__, record, strict=True))
        for name in ("bullets", "pricing", "attributes"):
            fields[name] = tuple(fields[name])
        fields["options"] = {name: tuple(values) for name, values in fields["options"].items()}
        return Product(**fields)

    def document(self) -> str:
        """The text of the search index."""
        options = ", and ".join(
            f"{name}: {', '.join(values)}" for name, values in self.options.items()
        )
        first_bullet = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first_bullet} {options}".lower()


def find_sources(folder: str | Path, *, variant: str | None = None) -> Sources:
    """Finds the catalogue files of a folder.

    Args:
      folder: Folder with `items_shuffle*.json`, `items_ins_v2*.json` and, for human goals,
        `items_human_ins.json`.
      variant: Text for the `*` if there are several, such as "_1000", or "" for the full files.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError("no such folder", key=folder, fix=f"make a catalogue with `{GENERATE}`")
    products = _list_variants(folder, "items_shuffle")
    instructions = _list_variants(folder, "items_ins_v2")
    human_path = folder / "items_human_ins.json"
    human = human_path if human_path.is_file() else None
    if variant is None:
        common = [name for name in products if name in instructions]
        # Names that do not match but leave no choice.
        if not common and len(products) == 1 and len(instructions) == 1:
            [product_path] = products.values()
            [instruction_path] = instructions.values()
            return Sources(product_path, instruction_path, human)
        if len(common) != 1:
            paths = [*products.values(), *instructions.values()]
            names = ", ".join(path.name for path in paths)
            raise InputError(
                f"holds no catalogue or several ({names})",
                key=folder,
                fix="choose with variant='_1000' (--variant)",
            )
        variant = common[0]
    for stem, variants in (("items_shuffle", products), ("items_ins_v2", instructions)):
        if variant not in variants:
            raise InputError(
                f"variant={variant!r} needs {stem}{variant}.json, which is not there", key=folder
            )
    return Sources(products[variant], instructions[variant], human)


def _list_variants(folder: Path, stem: str) -> dict[str, Path]:
    """Lists a folder's files whose names begin with a stem.

    Returns rest of the name -> path.
    """
    paths = sorted(folder.glob(f"{stem}*.json"))
    if not paths:
        raise InputError(
            f"no {stem}*.json in it",
            key=folder,
            fix=f"put the file there or make a catalogue with `{GENERATE}`",
        )
    return {path.stem.removeprefix(stem): path for path in paths}


def read_products(path: Path) -> Iterator[Any]:
    """Yields the items of a JSON file of one list, which is never in memory as a whole."""
    try:
        with open(path, encoding="utf-8") as file:
            yield from _decode_items(file, path)
    except (OSError, UnicodeDecodeError, RecursionError) as err:
        raise InputError(f"cannot be read ({err})", key=path, fix="get the file again") from err


def _decode_items(file: TextIO, path: Path) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    # Some editors write a byte order mark.
    text = file.read(_CHUNK).lstrip(" \t\r\n\ufeff")
    if not text.startswith("["):
        raise InputError("holds no JSON list of products", key=path, fix="get the file again")
    position = 1
    count = 0
    at_end = False
    while True:
        position = _skip_blanks(text, position)
        if text[position : position + 1] == "," and count:
            position = _skip_blanks(text, position + 1)
        if text[position : position + 1] == "]":
            return
        try:
            item, end = decoder.raw_decode(text, position)
            # A number at the end of a chunk decodes, but its next digits may follow.
            if end == len(text) and not at_end:
                raise json.JSONDecodeError("may continue", text, end)
        except json.JSONDecodeError as err:
            # The item may continue in the next chunk; at the end of the file it is broken.
            # As much again as was read, so that a long item is not decoded anew for every chunk.
            chunk = file.read(max(_CHUNK, len(text) - position))
            if not chunk:
                if at_end:
                    raise InputError(
                        f"cut short or not valid JSON after product {count}",
                        key=path,
                        fix="get it again",
                    ) from err
                at_end = True
            text = text[position:] + chunk
            position = 0
            continue
        yield item
        count += 1
        position = end


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \n\r\t":
        position += 1
    return position


def load_products(
    sources: Sources, attributes: Mapping[str, Any], *, num_products: int | None = None
) -> Iterator[Product]:
    """Yields the products of a catalogue, in load order.

    Args:
      sources: Files of the catalogue.
      attributes: Content of `sources.instructions`.
      num_products: Number of entries of the file to use; None: all.
    """
    asins: set[str] = set()
    for row, raw in enumerate(read_products(sources.products)):
        if num_products is not None and row >= num_products:
            return
        place = f"{sources.products}: product {row}"
        if not isinstance(raw, dict):
            raise InputError(f"is a JSON {type(raw).__name__}, not an object", key=place)
        asin = raw.get("asin")
        # The original's rules for skipping. The place of a product in load order decides its draws.
        if isinstance(asin, str) and (asin == "nan" or len(asin) > 10 or asin in asins):
            continue
        product = _read_product(raw, attributes, place)
        asins.add(product.asin)
        yield product


def _read_product(raw: dict[str, Any], attributes: Mapping[str, Any], place: str) -> Product:
    if "asin" in raw:
        place += f" (asin {raw['asin']!r})"
    for key, kind in _NEEDED.items():
        if key not in raw:
            raise InputError(f"has no {key!r}, which must be {kind}", key=place)
        if kind == "a string" and not isinstance(raw[key], str):
            raise InputError(f"{key!r} is {raw[key]!r:.40}, not {kind}", key=place)
    images = raw["images"] if isinstance(raw["images"], list) else []
    return Product(
        asin=raw["asin"],
        title=raw["name"],
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
        description=raw["full_description"],
        bullets=_read_bullets(raw["small_description"], place),
        pricing=parse_price(raw.get("pricing"), place),
        options=_read_options(raw["customization_options"], place),
        attributes=_read_attributes(attributes.get(raw["asin"]), place),
        image=images[0] if images and isinstance(images[0], str) else "",
    )


def _read_bullets(raw: Any, place: str) -> tuple[str, ...]:
    bullets = [raw] if isinstance(raw, str) else raw
    if not isinstance(bullets, list) or not all(isinstance(bullet, str) for bullet in bullets):
        raise InputError(f"'small_description' is not {_NEEDED['small_description']}", key=place)
    return tuple(bullets)


def parse_price(pricing: Any, place: str = "price") -> tuple[float, ...]:
    """Reads a price, or the two ends of a range; an empty text means 100 dollars."""
    # The original's price of a product without one.
    if not pricing:
        return (100.0,)
    if not isinstance(pricing, str):
        raise InputError(
            f"'pricing' is {pricing!r:.40}", key=place, fix="write a text such as '$12.50', or null"
        )
    try:
        prices = [float(Decimal(re.sub(r"[^\d.]", "", piece))) for piece in pricing.split("$")[1:]]
    except InvalidOperation:
        prices = []
    if not prices:
        raise InputError(
            f"'pricing' is {pricing!r:.40}, without a price",
            key=place,
            fix="write a text such as '$12.50', or null",
        )
    return tuple(prices[:2])


def _read_options(raw: Any, place: str) -> dict[str, tuple[str, ...]]:
    if not raw:
        return {}
    if not isinstance(raw, dict):
        raise InputError(
            f"'customization_options' is not {_NEEDED['customization_options']}", key=place
        )
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in raw.items():
        if contents is None:
            continue
        values = []
        for content in contents if isinstance(contents, list) else [None]:
            value = content.get("value") if isinstance(content, dict) else None
            if not isinstance(value, str):
                raise InputError(
                    f"option {name!r} is not a list of objects with a text 'value'", key=place
                )
            values.append(value.strip().replace("/", " | ").lower())
        options[name.lower()] = tuple(values)
    return options


def _read_attributes(annotation: Any, place: str) -> tuple[str, ...]:
    if annotation is None or "attributes" not in annotation:
        # The original's placeholder.
        return ("DUMMY_ATTR",)
    attributes = annotation["attributes"]
    if not isinstance(attributes, list) or not all(isinstance(text, str) for text in attributes):
        raise InputError(
            "its 'attributes' in the instruction file are not a list of texts", key=place
        )
    return tuple(attributes)
