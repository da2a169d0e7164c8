"""Finds and reads the files of a catalogue, and turns their entries into products."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from gigpo_jax.errors import InputError

PREPARE = "python -m gigpo_jax.envs webshop prepare"
GENERATE = "python -m gigpo_jax.envs webshop generate --out DIR --products 1000 --seed 0"
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
    human: Path | None  # `items_human_ins.json`; None if it is missing, then there are no human goals

    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.products, self.instructions, self.human) if path is not None)


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the shop."""

    asin: str  # its identifier, at most 10 characters
    title: str
    category: str  # this, query and product_category: of the shop's filing
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
        """`$a`, or `$a to $b`, with the numbers as Python prints floats."""
        return " to ".join(f"${price}" for price in self.pricing)

    def record(self) -> list[Any]:
        """The fields in their order, as JSON can hold them."""
        return [getattr(self, name) for name in self.__slots__]

    @staticmethod
    def from_record(record: list[Any]) -> "Product":
        fields = dict(zip(Product.__slots__, record))
        for name in ("bullets", "pricing", "attributes"):
            fields[name] = tuple(fields[name])
        fields["options"] = {name: tuple(values) for name, values in fields["options"].items()}
        return Product(**fields)

    def document(self) -> str:
        """The text of the search index."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first_bullet = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first_bullet} {options}".lower()


def find_sources(folder: str | Path, *, variant: str | None = None) -> Sources:
    """Finds the catalogue files of a folder.

    Args:
      folder: a folder with `items_shuffle*.json`, `items_ins_v2*.json` and, for human goals, `items_human_ins.json`.
      variant: which of several: the text for the `*`, such as "_1000", or "" for the full files.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; make a catalogue with `{GENERATE}`")
    found: dict[str, dict[str, Path]] = {}
    for stem in ("items_shuffle", "items_ins_v2"):
        found[stem] = {path.stem.removeprefix(stem): path for path in sorted(folder.glob(f"{stem}*.json"))}
        if not found[stem]:
            raise InputError(
                f"{folder}: no {stem}*.json in it; put the file there or make a catalogue with `{GENERATE}`"
            )
    common = [name for name in found["items_shuffle"] if name in found["items_ins_v2"]]
    if variant is None:
        if not common and len(found["items_shuffle"]) == 1 and len(found["items_ins_v2"]) == 1:
            products, instructions = (next(iter(found[stem].values())) for stem in ("items_shuffle", "items_ins_v2"))
            return Sources(products, instructions, _human(folder))
        if len(common) != 1:
            names = ", ".join(path.name for files in found.values() for path in files.values())
            raise InputError(f"{folder}: which catalogue? It holds {names}; choose with variant='_1000' (--variant)")
        variant = common[0]
    for stem, files in found.items():
        if variant not in files:
            raise InputError(f"{folder}: variant={variant!r} needs {stem}{variant}.json, which is not there")
    return Sources(found["items_shuffle"][variant], found["items_ins_v2"][variant], _human(folder))


def _human(folder: Path) -> Path | None:
    path = folder / "items_human_ins.json"
    return path if path.is_file() else None


def read_products(path: Path) -> Iterator[Any]:
    """Yields the items of a JSON file that holds one list, without reading it as a whole."""
    decoder = json.JSONDecoder()
    try:
        with open(path, encoding="utf-8") as file:
            yield from _items(file, decoder, path)
    except (OSError, UnicodeDecodeError, RecursionError) as err:
        raise InputError(f"{path}: cannot be read ({err}); get the file again") from err


def _items(file: Any, decoder: json.JSONDecoder, path: Path) -> Iterator[Any]:
    text = file.read(_CHUNK).lstrip(" \t\r\n\ufeff")
    if not text.startswith("["):
        raise InputError(f"{path}: holds no JSON list of products; get the file again")
    position, ended, count = 1, False, 0
    while True:
        position = _skip(text, position)
        if text[position : position + 1] == "," and count:
            position = _skip(text, position + 1)
        if text[position : position + 1] == "]":
            return
        try:
            item, after = decoder.raw_decode(text, position)
            if after == len(text) and not ended:
                raise json.JSONDecodeError("may continue", text, after)
        except json.JSONDecodeError as err:
            # The item may continue in the next chunk; at the end of the file it is broken.
            more = file.read(max(_CHUNK, len(text) - position))
            if not more:
                if ended:
                    raise InputError(
                        f"{path}: cut short or not valid JSON after product {count}; get it again"
                    ) from err
                ended = True
            text, position = text[position:] + more, 0
            continue
        yield item
        count += 1
        position = after


def _skip(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\n", "\r", "\t") and position < len(text):
        position += 1
    return position


def load_products(
    sources: Sources, attributes: Mapping[str, Any], *, num_products: int | None = None
) -> Iterator[Product]:
    """The products of a catalogue, in load order.

    Args:
      attributes: the content of `sources.instructions`.
      num_products: the number of entries of the file to use; None: all.
    """
    seen: set[str] = set()
    for row, raw in enumerate(read_products(sources.products)):
        if num_products is not None and row >= num_products:
            return
        where = f"{sources.products}: product {row}"
        if not isinstance(raw, dict):
            raise InputError(f"{where}: is a JSON {type(raw).__name__}, not an object")
        asin = raw.get("asin")
        if isinstance(asin, str) and (asin == "nan" or len(asin) > 10 or asin in seen):
            continue
        product = _product(raw, attributes, where)
        seen.add(product.asin)
        yield product


def _product(raw: dict[str, Any], attributes: Mapping[str, Any], where: str) -> Product:
    if "asin" in raw:
        where += f" (asin {raw['asin']!r})"
    for key, kind in _NEEDED.items():
        if key not in raw:
            raise InputError(f"{where}: has no {key!r}, which must be {kind}")
    for key in ("asin", "name", "category", "query", "product_category", "full_description"):
        if not isinstance(raw[key], str):
            raise InputError(f"{where}: {key!r} is {raw[key]!r:.40}, not {_NEEDED[key]}")
    bullets = raw["small_description"]
    bullets = (bullets,) if isinstance(bullets, str) else tuple(bullets) if isinstance(bullets, list) else (None,)
    if not all(isinstance(bullet, str) for bullet in bullets):
        raise InputError(f"{where}: 'small_description' is not {_NEEDED['small_description']}")
    images = raw["images"] if isinstance(raw["images"], list) else []
    return Product(
        asin=raw["asin"],
        title=raw["name"],
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
        description=raw["full_description"],
        bullets=bullets,
        pricing=parse_price(raw.get("pricing"), where),
        options=_options(raw["customization_options"], where),
        attributes=_attributes(attributes.get(raw["asin"]), where),
        image=images[0] if images and isinstance(images[0], str) else "",
    )


def parse_price(pricing: Any, where: str = "price") -> tuple[float, ...]:
    """The prices in a text: one, or the two ends of a range; 100 dollars for an empty text."""
    if not pricing:
        return (100.0,)
    if not isinstance(pricing, str):
        raise InputError(f"{where}: 'pricing' is {pricing!r:.40}; write a text such as '$12.50', or null")
    try:
        prices = [float(Decimal(re.sub(r"[^\d.]", "", piece))) for piece in pricing.split("$")[1:]]
    except InvalidOperation:
        prices = []
    if not prices:
        raise InputError(
            f"{where}: 'pricing' is {pricing!r:.40}, without a price; write a text such as '$12.50', or null"
        )
    return tuple(prices[:2])


def _options(raw: Any, where: str) -> dict[str, tuple[str, ...]]:
    if not raw:
        return {}
    if not isinstance(raw, dict):
        raise InputError(f"{where}: 'customization_options' is not {_NEEDED['customization_options']}")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in raw.items():
        if contents is None:
            continue
        values = []
        for content in contents if isinstance(contents, list) else [None]:
            value = content.get("value") if isinstance(content, dict) else None
            if not isinstance(value, str):
                raise InputError(f"{where}: option {name!r} is not a list of objects with a text 'value'")
            values.append(value.strip().replace("/", " | ").lower())
        options[name.lower()] = tuple(values)
    return options


def _attributes(annotation: Any, where: str) -> tuple[str, ...]:
    if annotation is None or "attributes" not in annotation:
        return ("DUMMY_ATTR",)
    attributes = annotation["attributes"]
    if not isinstance(attributes, list) or not all(isinstance(attribute, str) for attribute in attributes):
        raise InputError(f"{where}: its 'attributes' in the instruction file are not a list of texts")
    return tuple(attributes)
