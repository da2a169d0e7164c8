"""An open catalogue: products, goals and search, all read from memory-mapped files."""

import functools
import json
import logging
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.envs.webshop.catalogue import goals as goal_lists
from gigpo_jax.envs.webshop.catalogue import prepare, store
from gigpo_jax.envs.webshop.catalogue.goals import KINDS, Goal
from gigpo_jax.envs.webshop.catalogue.sources import PREPARE, Product, find_sources
from gigpo_jax.envs.webshop.engine.nouns import Tagger, open_tagger
from gigpo_jax.envs.webshop.search.bm25 import Index
from gigpo_jax.errors import InputError

_LOG = logging.getLogger(__name__)
_MAPPED = 8 << 20  # bytes of the files that a worker keeps mapped, about
_PAGES = 16 << 12  # bytes that reading one text maps, with the kernel's read-around
_AROUND = 8  # mapped bytes for each byte of postings read (measured: the kernel maps up to 2 MB around a read)
_BY_FIELD = {"<c>": "category", "<q>": "query"}
T = TypeVar("T")


class Recent(OrderedDict[object, T]):
    """A cache of the most recently used values."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def get_or(self, key: object, make: Callable[[], T]) -> T:
        """The value of a key, made if it is missing."""
        if key in self:
            self.move_to_end(key)
            return self[key]
        value = self[key] = make()
        if len(self) > self._size:
            self.popitem(last=False)
        return value


class _GoalList:
    """The goals of one kind, with one set of drawn prices and caps."""

    def __init__(self, folder: Path, arrays: dict[str, np.ndarray], kind: str, draws: random.Random | None) -> None:
        self.texts = store.Blob(folder / f"goals_{kind}.blob")
        self._row = arrays[f"goals_{kind}_row"]
        self._number = arrays[f"goals_{kind}_number"]
        self._start = arrays[f"goals_{kind}_start"]
        self._weight = arrays[f"goals_{kind}_weight"]
        self._kind = kind
        if draws is None:
            self.prices, self._cap = arrays["prices"], arrays[f"goals_{kind}_cap"]
        else:
            low, high, count = (arrays[f"price_{name}"] for name in ("low", "high", "count"))
            pricing = zip(low.tolist(), high.tolist(), count.tolist())
            self.prices = goal_lists.draw_prices(((a,) if n == 1 else (a, b) for a, b, n in pricing), draws)
            self._cap = goal_lists.draw_caps(self.prices[self._row].tolist(), draws)
        self.order = arrays[f"goals_{kind}_order"]

    def listed(self, *, repeats: bool) -> np.ndarray:
        return goal_lists.shuffled(int(self._start[-1])) if repeats else self.order

    def make(self, position: int, product_of: Callable[[int], Product]) -> Goal:
        template = int(np.searchsorted(self._start, position, "right")) - 1
        row, number = int(self._row[template]), int(self._number[template])
        cap = float(self._cap[template])
        instruction, attributes, values = json.loads(self.texts[template])
        product = product_of(row)
        options: tuple[str, ...] | dict[str, str]
        if values is None:
            number = position - int(self._start[template])
            options = goal_lists.combination(product.options, number)
            text = goal_lists.synthetic_text(instruction, options, cap)
        else:
            options = tuple(values)
            text = instruction + goal_lists.price_text(cap)
        return Goal(
            id=f"{self._kind}-{product.asin}-{number}",
            asin=product.asin,
            category=product.category,
            query=product.query,
            name=product.title,
            product_category=product.product_category,
            instruction=text,
            attributes=tuple(attributes),
            options=options,
            price_cap=cap,
            weight=float(self._weight[template]),
        )

    def weights(self, order: np.ndarray) -> np.ndarray:
        return np.asarray(self._weight)[np.searchsorted(self._start, order, "right") - 1]


class Catalogue:
    """An open catalogue, immutable and shared by sessions; see `open_catalogue`."""

    def __init__(
        self,
        folder: Path,
        *,
        goals: str = "synthetic",
        draw_seed: int | None = None,
        seed: int = 0,
        tagger: Tagger | None = None,
    ) -> None:
        manifest = store.read_manifest(folder)
        if manifest is None:
            raise InputError(
                f"{folder}: not a complete prepared catalogue of this version; make it with `{PREPARE} DIR`"
            )
        if goals not in KINDS:
            raise InputError(f"goals={goals!r}: there are 'human' and 'synthetic' goals; choose one")
        self.folder, self.content = folder, str(manifest["content"])
        self._count = int(manifest["products"])
        arrays = self._arrays = store.load_arrays(folder)
        self._read_texts = 0
        self._products = store.Blob(folder / "products.blob")
        self._index = Index(arrays)
        self._asins, self._asin_rows = arrays["asin_sorted"], arrays["asin_rows"]
        self._filed = {name: arrays[f"filed_{name}"] for name in _BY_FIELD.values()}
        self._filed_names: dict[str, dict[str, int]] = {}
        draw = draw_seed if draw_seed is not None else seed
        plain = draw_seed is None and seed == prepare.CANONICAL_SEED
        self._goals = _GoalList(folder, arrays, goals, None if plain else random.Random(draw))
        self._order = self._goals.listed(repeats=draw_seed is not None)
        if not len(self._order):
            where = " (they come from items_human_ins.json beside the products)" if goals == "human" else ""
            other = KINDS[goals == "human"]
            raise InputError(f"{folder}: the catalogue has no {goals} goals{where}; choose goals={other!r}")
        self._tagger = tagger or open_tagger(None)
        self._recent_products: Recent[Product] = Recent(1024)
        self._recent_searches: Recent[np.ndarray | None] = Recent(512)
        self._recent_nouns: Recent[tuple[str, ...]] = Recent(1024)

    def __len__(self) -> int:
        return self._count

    @property
    def goal_count(self) -> int:
        return len(self._order)

    @property
    def test_goals(self) -> range:
        """Indices of the test split: the first 500 goals (half of a list of fewer than 1,000)."""
        return range(goal_lists.test_size(self.goal_count))

    @property
    def train_goals(self) -> range:
        return range(goal_lists.test_size(self.goal_count), self.goal_count)

    def goal(self, index: int) -> Goal:
        """A goal of the list; InputError if there is no such goal."""
        if isinstance(index, bool) or not hasattr(index, "__index__") or not 0 <= index < self.goal_count:
            raise InputError(f"goal {index!r}: the list has goals 0 to {self.goal_count - 1}; choose one of them")
        self._read_texts += 1
        return self._goals.make(int(self._order[index]), self.product)

    def draw_goal(self, rng: random.Random) -> int:
        """The index of a goal drawn by weight, as in the original."""
        cumulative = self._cumulative
        position = rng.uniform(0, float(cumulative[-1]))
        return min(int(np.searchsorted(cumulative, position, "right")), self.goal_count - 1)

    @functools.cached_property
    def _cumulative(self) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(self._goals.weights(np.asarray(self._order)))])

    def product(self, row: int) -> Product:
        """The product of a row (its place in load order)."""
        return self._recent_products.get_or(row, lambda: self._read_product(row))

    def _read_product(self, row: int) -> Product:
        try:
            product = Product.from_record(json.loads(self._products[row]))
        except ValueError as err:
            raise InputError(f"{self.folder}: product {row} is damaged ({err}); prepare it again") from err
        self._read_texts += 1
        self._stay_small()
        return product

    def _stay_small(self) -> None:
        """Unmaps pages when too many were read, so that a worker's memory stays small."""
        if self._index.read_bytes * _AROUND + self._read_texts * _PAGES > _MAPPED:
            self._index.read_bytes = self._read_texts = 0
            self._products.release_pages()
            self._goals.texts.release_pages()
            store.release_pages(self._arrays)

    def price(self, row: int) -> float:
        """The drawn price of a row's product, in dollars."""
        return float(self._goals.prices[row])

    def row(self, asin: str) -> int | None:
        """The row of a product; None for an unknown asin."""
        place = int(np.searchsorted(self._asins, asin))
        if place == len(self._asins) or str(self._asins[place]) != asin:
            return None
        return int(self._asin_rows[place])

    def nouns(self, title: str) -> tuple[str, ...]:
        return self._recent_nouns.get_or(title, lambda: tuple(self._tagger(title)))

    def search(self, keywords: list[str]) -> np.ndarray | None:
        """The rows of a search's products, best first, [n] i64; None for a search that the original cannot run.

        `keywords` is the text split at single spaces; `<c>` or `<q>` first asks for a category or a query instead.
        """
        return self._recent_searches.get_or(" ".join(keywords), lambda: self._search(keywords))

    def _search(self, keywords: list[str]) -> np.ndarray | None:
        command = keywords[0]
        if command in ("<r>", "<a>") or (command == "<c>" and len(keywords) < 2):
            return None
        if command in _BY_FIELD:
            name = _BY_FIELD[command]
            wanted = keywords[1].strip() if command == "<c>" else " ".join(keywords[1:]).strip()
            if name not in self._filed_names:
                names = json.loads((self.folder / f"filed_{name}.json").read_text(encoding="utf-8"))
                self._filed_names[name] = {text: i for i, text in enumerate(names)}
            return np.flatnonzero(self._filed[name] == self._filed_names[name].get(wanted, -1))
        found = self._index.search(" ".join(keywords))
        self._stay_small()
        return found


def open_catalogue(
    folder: str | Path,
    *,
    goals: str = "synthetic",
    draw_seed: int | None = None,
    nouns: str | Path | Tagger | None = None,
    seed: int = 0,
    num_products: int | None = None,
    variant: str | None = None,
) -> Catalogue:
    """Opens a catalogue.

    A prepared folder opens at once. Any other is prepared into the cache folder first, where later calls find it.

    Args:
      folder: holds `items_shuffle*.json`, `items_ins_v2*.json` and `items_human_ins.json`; or a prepared folder.
      goals: "human" or "synthetic".
      draw_seed: draw prices and price caps as the original does with this seed, and list every goal. None: the
        canonical list of the catalogue, the same on any machine, without repeats, with disjoint splits.
      nouns: the tagger of titles: a JSON file of title -> nouns, "builtin" (also None), "spacy", or a function.
      seed: of the canonical list's prices and caps.
      num_products: the number of entries of the product file to use; None: all.
      variant: which of several catalogues in the folder, such as "_1000".

    Raises:
      InputError: missing or broken files, a prepared folder that does not fit its sources, an invalid option.
    """
    folder = Path(folder)
    if num_products is not None:
        check_whole("num_products", num_products, 1)
    tagger = open_tagger(nouns)
    return Catalogue(
        _prepared(folder, num_products, variant), goals=goals, draw_seed=draw_seed, seed=seed, tagger=tagger
    )


def _prepared(folder: Path, num_products: int | None, variant: str | None) -> Path:
    if (folder / "manifest.json").is_file() and not any(folder.glob("items_shuffle*.json")):
        return folder
    sources = find_sources(folder, variant=variant)
    own = folder / "prepared"
    manifest = store.read_manifest(own)
    if own.is_dir():
        if manifest is None:
            raise InputError(f"{own}: incomplete or of another version; run `{PREPARE} {folder}` again")
        if [entry["name"] for entry in manifest["sources"]] == [path.name for path in sources.paths()]:
            if not store.fits(manifest, sources):
                raise InputError(
                    f"{own}: was made from other files than those in {folder}; run `{PREPARE} {folder}` again"
                )
            if manifest["num_products"] == num_products:
                return own
    described = store.describe(sources)
    out = cache_folder("webshop") / store.content_hash(described, num_products)
    if store.read_manifest(out) is None:
        _LOG.info("preparing %s into %s (once; `%s %s` shows a progress bar)", folder, out, PREPARE, folder)
        prepare.ensure(sources, out, num_products=num_products)
    return out
