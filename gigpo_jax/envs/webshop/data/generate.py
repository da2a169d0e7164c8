"""Makes a catalogue in the formats of the genuine files, for use without downloads.

It has the difficult cases of genuine files: price ranges, missing prices, equal values in two
options, unusual characters, empty feature lines, entries to skip. The same arguments give the same
bytes on any machine.
"""

import json
import random
import string
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import replace_file
from gigpo_jax.core.folders import lock_folder
from gigpo_jax.env_bridge.base import Progress, check_whole, no_progress
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.envs.webshop.catalogue import prepare, store
from gigpo_jax.envs.webshop.catalogue.sources import find_sources
from gigpo_jax.envs.webshop.data.assortment import Assortment, Shelf, load_assortment

VERSION = 1  # increased when the same arguments give other data; in the folder's name
PRODUCTS = 1000
_ASIN_LETTERS = string.ascii_uppercase + string.digits


def _draw_asin(index: int, rng: random.Random) -> str:
    """Ten characters, unique by the index."""
    digits = ""
    rest = index
    for _ in range(4):
        # 36^4 indices: unique for over a million products.
        rest, digit = divmod(rest, len(_ASIN_LETTERS))
        digits += _ASIN_LETTERS[digit]
    return "B0" + "".join(rng.choices(_ASIN_LETTERS, k=4)) + digits[::-1]


def _draw_price(shelf: Shelf, rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.02:
        return None
    if kind < 0.04:
        return ""
    low, high = shelf.price
    # The square makes cheap products more frequent.
    price = round(low + (high - low) * rng.random() ** 2, 2)
    if kind < 0.045:
        return f"${price * 20:,.2f}"
    if kind < 0.16:
        return f"${price:,.2f} to ${price * rng.uniform(1.2, 1.8):,.2f}"
    return f"${price:,.2f}"


def _draw_options(words: Assortment, shelf: Shelf, rng: random.Random) -> dict[str, list[str]]:
    """Option name -> its values."""
    probability = 0.8 if len(shelf.options) < 3 else 0.6
    kinds = [kind for kind in shelf.options if rng.random() < probability]
    options = {}
    for kind in kinds:
        all_values = words.values[kind]
        values = rng.sample(all_values, min(rng.choice((1, 2, 3, 3, 4)), len(all_values)))
        if kind in words.traps and rng.random() < 0.02:
            values.append(rng.choice(words.traps[kind]))
        options[kind.partition(" of ")[0]] = values
    names = list(options)
    if len(names) > 1 and rng.random() < 0.02:  # the same value in two options
        options[names[1]].append(options[names[0]][0])
    return options


def _format_options(
    options: dict[str, list[str]], asin: str, rng: random.Random
) -> dict[str, Any] | None:
    """Options in the genuine format, with its irregularities."""
    if not options:
        return None if rng.random() < 0.5 else {}
    entries: dict[str, Any] = {}
    for name, values in options.items():
        rows = []
        for number, value in enumerate(values):
            image = f"https://images.example/{asin}-{number}.jpg" if name == "color" else None
            blank = " " if rng.random() < 0.02 else ""
            rows.append({"value": value + blank, "image": image})
        entries[name.title()] = rows
    if rng.random() < 0.02:
        entries["Edition"] = None
    return entries


def _draw_texts(
    words: Assortment,
    shelf: Shelf,
    thing: str,
    brand: str,
    attributes: list[str],
    rng: random.Random,
) -> tuple[str, str, Any]:
    """Title, description, feature lines."""
    look = rng.choice(words.looks)
    title_attributes = attributes[: rng.choice((1, 2, 2, 3))]
    alias = rng.choice(shelf.things)
    ending = rng.choice(words.endings)
    title = f"{brand} {look} {thing}, {', '.join(title_attributes).title()} {alias} {ending}"
    if rng.random() < 0.03:
        title += " " + rng.choice(words.odd_endings)
    occasion = rng.choice(words.occasions)
    praise = rng.choice(words.praise)
    description = (
        f"{brand}'s {thing.lower()} is {praise}: {', '.join(attributes)}.\n\n"
        f"Ideal for {occasion}. Don't miss it!"
    )
    if rng.random() < 0.04:
        description = ""
    bullets = []
    for attribute in attributes:
        praise = f"{rng.choice(words.looks).lower()}, {rng.choice(words.praise)}"
        bullets.append(f"{attribute.capitalize()}: this {thing.lower()} is {praise}.")
    bullets.append("Easy returns & support")
    if rng.random() < 0.04:
        bullets.insert(rng.randrange(1, len(bullets) + 1), rng.choice(("", " ")))
    return title, description, bullets if rng.random() < 0.97 else bullets[0]


def _draw_requests(
    words: Assortment,
    asin: str,
    thing: str,
    attributes: list[str],
    options: dict[str, list[str]],
    rng: random.Random,
) -> list[Any]:
    """The human requests for a product, in the genuine format."""
    requests = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        required = rng.sample(attributes, min(rng.choice((1, 2, 2, 3)), len(attributes)))
        chosen = {}
        for name, values in options.items():
            if rng.random() < 0.7:
                chosen[name] = rng.choice(values).replace("/", " | ").lower()
        option_text = f" in {', '.join(chosen.values())}" if chosen else ""
        text = rng.choice(words.human_requests).format(
            attributes=" and ".join(required), thing=thing.lower(), options=option_text
        )
        requests.append(
            {
                "asin": asin,
                "instruction": text,
                "attributes": sorted(attributes),
                "options": [f"{name}: {value}" for name, value in chosen.items()],
                "instruction_attributes": required if rng.random() < 0.98 else [],
                "instruction_options": list(chosen.values()),
                "assignment_id": "generated",
                "worker_id": "generated",
            }
        )
    return requests


def _draw_product(
    index: int, rng: random.Random
) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Draws a product, its annotation and its human requests, all in the genuine formats."""
    # The order of the draws is part of the format: another one gives another catalogue.
    words = load_assortment()
    shelf = rng.choice(words.shelves)
    thing = rng.choice(shelf.things)
    brand = rng.choice(words.brands)
    attributes = rng.sample(shelf.attributes, rng.choice((2, 3, 3, 4, 5)))
    options = _draw_options(words, shelf, rng)
    asin = _draw_asin(index, rng)
    title, description, bullets = _draw_texts(words, shelf, thing, brand, attributes, rng)
    product = {
        "asin": asin,
        "name": title,
        "category": shelf.category,
        "query": shelf.query,
        "product_category": shelf.path,
        "full_description": description,
        "small_description": bullets,
        "pricing": _draw_price(shelf, rng),
        "customization_options": _format_options(options, asin, rng),
        "images": [f"https://images.example/{asin}.jpg"],
        "brand": brand,
        "average_rating": "",
        "list_price": "",
        "availability_status": "",
        "total_reviews": "",
    }
    required = rng.sample(attributes, min(rng.choice((1, 2, 3)), len(attributes)))
    annotation: dict[str, Any] = {
        "attributes": sorted(attributes),
        "instruction": None,
        "instruction_attributes": [],
    }
    # Some genuine products have no synthetic instruction.
    if rng.random() < 0.9:
        annotation["instruction"] = f"Find me {', '.join(required)} {thing.lower()}"
        annotation["instruction_attributes"] = required
    return product, annotation, _draw_requests(words, asin, thing, attributes, options, rng)


def _check_arguments(products: int, seed: int) -> None:
    check_whole("products", products, 1)
    check_whole("seed", seed)


def write_catalogue(
    out: Path, *, products: int = PRODUCTS, seed: int = 0, progress: Progress = no_progress
) -> None:
    """Writes a catalogue of three files into a folder.

    Args:
      out: Folder without a catalogue; created if it does not exist.
      products: Number of products.
      seed: Seed of all draws.
      progress: Called with 1 after every product.

    Raises:
      InputError: a number out of range, or a folder that holds a catalogue.
    """
    _check_arguments(products, seed)
    # The genuine catalogue of this size has this name.
    variant = "_1000" if products == PRODUCTS else ""
    files = sorted(path.name for path in out.glob("items_*.json")) if out.is_dir() else []
    if files:
        raise InputError(
            f"holds {files[0]} already", key="--out", value=out, fix="name an empty folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    # Hashed with SHA-512, so equal in every process, unlike hash().
    rng = random.Random(f"webshop {seed}")
    annotations: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    with ExitStack() as stack:
        # The stack ends in reverse: the requests appear last, and mark the catalogue as complete.
        requests_path = stack.enter_context(replace_file(out / "items_human_ins.json"))
        annotations_path = stack.enter_context(replace_file(out / f"items_ins_v2{variant}.json"))
        products_path = stack.enter_context(replace_file(out / f"items_shuffle{variant}.json"))
        file = stack.enter_context(open(products_path, "w", encoding="utf-8"))
        file.write("[")
        for index in range(products):
            product, annotation, product_requests = _draw_product(index, rng)
            file.write((",\n" if index else "") + json.dumps(product))
            annotations[product["asin"]] = annotation
            if product_requests:
                requests[product["asin"]] = product_requests
            progress(1)
        # Entries that a reader must skip: no asin, a long one, one that occurred before.
        for entry in ({**product, "asin": "nan"}, {**product, "asin": "B0TOOLONG000"}, product):
            file.write(",\n" + json.dumps(entry))
        file.write("]\n")
        annotations_path.write_text(json.dumps(annotations), encoding="utf-8")
        requests_path.write_text(json.dumps(requests), encoding="utf-8")


def ensure_catalogue(
    cache_root: Path | None = None,
    *,
    products: int = PRODUCTS,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Path:
    """Makes a prepared catalogue in the cache on first use, even if several processes call it.

    Args:
      cache_root: Folder of catalogues; None: the cache folder.
      products: Number of products.
      seed: Seed of all draws.
      progress: Called with 1 after every product, once when it is generated and once when it is
        prepared.

    Returns:
      The catalogue's folder.
    """
    _check_arguments(products, seed)
    root = cache_folder("webshop") if cache_root is None else Path(cache_root)
    root.mkdir(parents=True, exist_ok=True)
    out = root / f"generated-{VERSION}-{products}-{seed}"
    if store.read_manifest(out / "prepared") is not None:
        return out
    with lock_folder(out):
        # Another process may have made it while this one waited for the lock.
        if store.read_manifest(out / "prepared") is None:
            # The requests are the last file: without it, the others are of a killed process.
            if not (out / "items_human_ins.json").is_file():
                for remnant in [*out.glob("items_*"), *out.glob(".items_*")]:
                    remnant.unlink()
                write_catalogue(out, products=products, seed=seed, progress=progress)
            sources = find_sources(out)
            prepare.ensure_prepared(sources, out / "prepared", progress=progress)
    return out
