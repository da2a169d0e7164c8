"""Makes a catalogue in the formats of the genuine files, for use without downloads.

It has the difficult cases of genuine files: price ranges, missing prices, equal values in two options, unusual
characters, empty feature lines, entries to skip. The same arguments give the same bytes on any machine.
"""

import json
import random
import string
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gigpo_jax.env_bridge.base import Progress, check_whole, no_progress
from gigpo_jax.env_bridge.paths import cache_folder, locked
from gigpo_jax.envs.webshop.catalogue import prepare, store
from gigpo_jax.envs.webshop.catalogue.sources import find_sources
from gigpo_jax.envs.webshop.data.assortment import Assortment, Shelf, assortment
from gigpo_jax.errors import InputError
from gigpo_jax.files import replacing

VERSION = 1  # increased when the same arguments give other data; in the folder's name
PRODUCTS = 1000
_LETTERS = string.ascii_uppercase + string.digits


def _asin(index: int, rng: random.Random) -> str:
    """Ten characters, unique by the index."""
    digits, number = "", index
    for _ in range(4):
        number, digit = divmod(number, len(_LETTERS))
        digits += _LETTERS[digit]
    return "B0" + "".join(rng.choices(_LETTERS, k=4)) + digits[::-1]


def _price(shelf: Shelf, rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.02:
        return None
    if kind < 0.04:
        return ""
    low, high = shelf.price
    price = round(low + (high - low) * rng.random() ** 2, 2)
    if kind < 0.045:
        return f"${price * 20:,.2f}"
    return f"${price:,.2f} to ${price * rng.uniform(1.2, 1.8):,.2f}" if kind < 0.16 else f"${price:,.2f}"


def _options(words: Assortment, shelf: Shelf, rng: random.Random) -> dict[str, list[str]]:
    kinds = [kind for kind in shelf.options if rng.random() < (0.8 if len(shelf.options) < 3 else 0.6)]
    options = {}
    for kind in kinds:
        values = rng.sample(words.values[kind], min(rng.choice((1, 2, 3, 3, 4)), len(words.values[kind])))
        if kind in words.traps and rng.random() < 0.02:
            values.append(rng.choice(words.traps[kind]))
        options[kind.partition(" of ")[0]] = values
    names = list(options)
    if len(names) > 1 and rng.random() < 0.02:  # the same value in two options
        options[names[1]].append(options[names[0]][0])
    return options


def _raw_options(options: dict[str, list[str]], asin: str, rng: random.Random) -> dict[str, Any] | None:
    if not options:
        return None if rng.random() < 0.5 else {}
    raw: dict[str, Any] = {}
    for name, values in options.items():
        image = f"https://images.example/{asin}-{{}}.jpg" if name == "color" else None
        raw[name.title()] = [
            {"value": value + (" " if rng.random() < 0.02 else ""), "image": image and image.format(place)}
            for place, value in enumerate(values)
        ]
    if rng.random() < 0.02:
        raw["Edition"] = None
    return raw


def _texts(
    words: Assortment, shelf: Shelf, thing: str, brand: str, attributes: list[str], rng: random.Random
) -> tuple[str, str, Any]:
    """Title, description, feature lines."""
    look = rng.choice(words.looks)
    named = attributes[: rng.choice((1, 2, 2, 3))]
    second, ending = rng.choice(shelf.things), rng.choice(words.endings)
    title = f"{brand} {look} {thing}, {', '.join(named).title()} {second} {ending}"
    if rng.random() < 0.03:
        title += " " + rng.choice(words.odd_endings)
    spot, praise = rng.choice(words.occasions), rng.choice(words.praise)
    description = f"{brand}'s {thing.lower()} is {praise}: {', '.join(attributes)}.\n\nIdeal for {spot}. Don't miss it!"
    if rng.random() < 0.04:
        description = ""
    praises = [f"{rng.choice(words.looks).lower()}, {rng.choice(words.praise)}" for _ in attributes]
    bullets = [f"{name.capitalize()}: this {thing.lower()} is {says}." for name, says in zip(attributes, praises)]
    bullets.append("Easy returns & support")
    if rng.random() < 0.04:
        bullets.insert(rng.randrange(1, len(bullets) + 1), rng.choice(("", " ")))
    return title, description, bullets if rng.random() < 0.97 else bullets[0]


def _human(
    words: Assortment, asin: str, thing: str, attributes: list[str], options: dict[str, list[str]], rng: random.Random
) -> list[Any]:
    requests = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        wanted = rng.sample(attributes, min(rng.choice((1, 2, 2, 3)), len(attributes)))
        chosen = {
            name: rng.choice(values).replace("/", " | ").lower()
            for name, values in options.items()
            if rng.random() < 0.7
        }
        listed = f" in {', '.join(chosen.values())}" if chosen else ""
        text = rng.choice(words.human_requests).format(
            attributes=" and ".join(wanted), thing=thing.lower(), options=listed
        )
        requests.append(
            {
                "asin": asin,
                "instruction": text,
                "attributes": sorted(attributes),
                "options": [f"{name}: {value}" for name, value in chosen.items()],
                "instruction_attributes": wanted if rng.random() < 0.98 else [],
                "instruction_options": list(chosen.values()),
                "assignment_id": "generated",
                "worker_id": "generated",
            }
        )
    return requests


def _product(index: int, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """A product, its annotation and its human requests, in the genuine formats."""
    words = assortment()
    shelf = rng.choice(words.shelves)
    thing, brand = rng.choice(shelf.things), rng.choice(words.brands)
    attributes = rng.sample(shelf.attributes, rng.choice((2, 3, 3, 4, 5)))
    options = _options(words, shelf, rng)
    asin = _asin(index, rng)
    title, description, bullets = _texts(words, shelf, thing, brand, attributes, rng)
    product = {
        "asin": asin,
        "name": title,
        "category": shelf.category,
        "query": shelf.query,
        "product_category": shelf.path,
        "full_description": description,
        "small_description": bullets,
        "pricing": _price(shelf, rng),
        "customization_options": _raw_options(options, asin, rng),
        "images": [f"https://images.example/{asin}.jpg"],
        "brand": brand,
        "average_rating": "",
        "list_price": "",
        "availability_status": "",
        "total_reviews": "",
    }
    wanted = rng.sample(attributes, min(rng.choice((1, 2, 3)), len(attributes)))
    annotation: dict[str, Any] = {"attributes": sorted(attributes), "instruction": None, "instruction_attributes": []}
    if rng.random() < 0.9:
        annotation["instruction"] = f"Find me {', '.join(wanted)} {thing.lower()}"
        annotation["instruction_attributes"] = wanted
    return product, annotation, _human(words, asin, thing, attributes, options, rng)


def _check(products: int, seed: int) -> None:
    check_whole("products", products, 1)
    check_whole("seed", seed)


def generate(out: Path, *, products: int = PRODUCTS, seed: int = 0, progress: Progress = no_progress) -> None:
    """Writes a catalogue of `products` products into a folder: three files."""
    _check(products, seed)
    names = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
    if products != PRODUCTS:
        names = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")
    if out.is_dir() and (old := [path.name for path in out.glob("items_*.json")]):
        raise InputError(f"--out {out}: holds {old[0]} already; name an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"webshop {seed}")
    annotations: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    with ExitStack() as stack:
        products_file, annotations_file, requests_file = (stack.enter_context(replacing(out / name)) for name in names)
        file = stack.enter_context(open(products_file, "w", encoding="utf-8"))
        file.write("[")
        for index in range(products):
            product, annotation, human = _product(index, rng)
            file.write((",\n" if index else "") + json.dumps(product))
            annotations[product["asin"]] = annotation
            if human:
                requests[product["asin"]] = human
            progress(1)
        for odd in ({**product, "asin": "nan"}, {**product, "asin": "B0TOOLONG000"}, product):  # entries to skip
            file.write(",\n" + json.dumps(odd))
        file.write("]\n")
        annotations_file.write_text(json.dumps(annotations), encoding="utf-8")
        requests_file.write_text(json.dumps(requests), encoding="utf-8")


def ensure_catalogue(
    cache_root: Path | None = None, *, products: int = PRODUCTS, seed: int = 0, progress: Progress = no_progress
) -> Path:
    """A generated, prepared catalogue in the cache folder, made on first use; safe to call from several processes.

    `progress` is called with 1 after every product, once when it is generated and once when it is prepared.
    """
    _check(products, seed)
    root = cache_folder("webshop") if cache_root is None else Path(cache_root)
    root.mkdir(parents=True, exist_ok=True)
    out = root / f"generated-{VERSION}-{products}-{seed}"
    if store.read_manifest(out / "prepared") is not None:
        return out
    with locked(out):
        if store.read_manifest(out / "prepared") is None:
            if not list(out.glob("items_human_ins.json")):
                for part in [*out.glob("items_*"), *out.glob(".items_*")]:
                    part.unlink()
                generate(out, products=products, seed=seed, progress=progress)
            sources = find_sources(out)
            prepare.ensure(sources, out / "prepared", progress=progress)
    return out
