"""An open catalogue: products, goals and search, all read from memory-mapped files."""

import functools
import json
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.envs.webshop.catalogue import goals as goal_lists
from gigpo_jax.envs.webshop.catalogue import prepare, store
from gigpo_jax.envs.webshop.catalogue.goals import KINDS, ShoppingGoal
from gigpo_jax.envs.webshop.catalogue.sources import PREPARE, Product, find_sources
from gigpo_jax.envs.webshop.engine.nouns import Tagger, open_tagger
from gigpo_jax.envs.webshop.search.bm25 import Index

_LOG = logging.getLogger(__name__)
_MAPPED_BYTES = 8 << 20  # of the files that a worker keeps mapped, about
_TEXT_BYTES = 16 << 12  # mapped by reading one text, with the kernel's read-around
# mapped bytes for each byte of postings read (measured: the kernel maps up to 2 MB around a read)
_READ_AROUND = 8
_COMMAND_FIELDS = {"<c>": "category", "<q>": "query"}
T = TypeVar("T")


class RecentValues(OrderedDict[object, T]):
    """A cache of the most recently used values."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def get_or(self, key: object, make: Callable[[], T]) -> T:
        """The value of a key, made if it is missing."""
        if key in self:
            self.move_to_end(key)
            return self[key]
        value = make()
        self[key] = value
        if len(self) > self._size:
            self.popitem(last=False)
        return value


class _GoalList:
    """One kind's goals, with one draw of their prices and price caps."""

    def __init__(
        self, folder: Path, arrays: dict[str, np.ndarray], kind: str, draws: random.Random | None
    ) -> None:
        self.texts = store.Blob(folder / f"goals_{kind}.blob")
        self.order = arrays[f"goals_{kind}_order"]
        self._row = arrays[f"goals_{kind}_row"]
        self._number = arrays[f"goals_{kind}_number"]
        self._start = arrays[f"goals_{kind}_start"]
        self._weight = arrays[f"goals_{kind}_weight"]
        self._kind = kind
        # The canonical draws were made with the catalogue.
        if draws is None:
            self.prices = arrays["prices"]
            self._cap = arrays[f"goals_{kind}_cap"]
        else:
            self.prices = goal_lists.draw_prices(_read_pricing(arrays), draws)
            self._cap = goal_lists.draw_caps(self.prices[self._row].tolist(), draws)

    def list_goals(self, *, repeats: bool) -> np.ndarray:
        """Returns the goals' positions in list order, [G] i64."""
        return goal_lists.shuffle_goals(int(self._start[-1])) if repeats else self.order

    def make_goal(self, position: int, read_product: Callable[[int], Product]) -> ShoppingGoal:
        """The goal of a position."""
        # The last template that starts at or before the position; one may have no goals at all.
        template = int(np.searchsorted(self._start, position, "right")) - 1
        cap = float(self._cap[template])
        instruction, attributes, values = json.loads(self.texts[template])
        product = read_product(int(self._row[template]))
        options: tuple[str, ...] | dict[str, str]
        # A synthetic template stands for all combinations of options; the position says which one.
        if values is None:
            number = position - int(self._start[template])
            options = goal_lists.option_combination(product.options, number)
            # Made on access: the catalogue has a goal for every combination of options.
            text = goal_lists.synthetic_text(instruction, options, cap)
        else:
            number = int(self._number[template])
            options = tuple(values)
            text = instruction + goal_lists.price_text(cap)
        return ShoppingGoal(
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

    def list_weights(self, order: np.ndarray) -> np.ndarray:
        """The weights of the goals of these positions, [G] f64."""
        return np.asarray(self._weight)[np.searchsorted(self._start, order, "right") - 1]


def _read_pricing(arrays: dict[str, np.ndarray]) -> Iterator[tuple[float, ...]]:
    """Yields each product's price, or the ends of its range."""
    lows = arrays["price_low"].tolist()
    highs = arrays["price_high"].tolist()
    counts = arrays["price_count"].tolist()
    for low, high, count in zip(lows, highs, counts, strict=True):
        yield (low,) if count == 1 else (low, high)


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
                "not a complete prepared catalogue of this version",
                key=folder,
                fix=f"make it with `{PREPARE} DIR`",
            )
        if goals not in KINDS:
            raise InputError(
                "there are 'human' and 'synthetic' goals",
                key="goals",
                value=repr(goals),
                fix="choose one",
            )
        self.folder = folder
        self.content = str(manifest["content"])
        self._count = int(manifest["products"])
        self._arrays = store.load_arrays(folder)
        self._products = store.Blob(folder / "products.blob")
        self._index = Index(self._arrays)
        self._asins = self._arrays["asin_sorted"]
        self._asin_rows = self._arrays["asin_rows"]
        self._field_names: dict[str, dict[str, int]] = {}  # read on the first search by the field

        # The canonical draws are on disk; others are made here.
        is_canonical = draw_seed is None and seed == prepare.CANONICAL_SEED
        draws = None
        if not is_canonical:
            draws = random.Random(seed if draw_seed is None else draw_seed)
        self._goals = _GoalList(folder, self._arrays, goals, draws)
        self._order = self._goals.list_goals(repeats=draw_seed is not None)
        if not len(self._order):
            raise _no_goals(folder, goals)

        self._tagger = tagger or open_tagger(None)
        self._recent_products: RecentValues[Product] = RecentValues(1024)
        self._recent_searches: RecentValues[np.ndarray | None] = RecentValues(512)
        self._recent_nouns: RecentValues[tuple[str, ...]] = RecentValues(1024)
        self._text_reads = 0

    def __len__(self) -> int:
        return self._count

    @property
    def goal_count(self) -> int:
        """The number of goals in the list."""
        return len(self._order)

    @property
    def test_goals(self) -> range:
        """Indices of the test split: the first 500 goals, or half of fewer than 1,000."""
        return range(goal_lists.test_size(self.goal_count))

    @property
    def train_goals(self) -> range:
        """Indices of the train split: goals after the test split."""
        return range(goal_lists.test_size(self.goal_count), self.goal_count)

    def goal(self, index: int) -> ShoppingGoal:
        """Returns a goal of the list.

        Raises:
          InputError: there is no such goal.
        """
        is_whole = hasattr(index, "__index__") and not isinstance(index, bool)
        if not is_whole or not 0 <= index < self.goal_count:
            raise InputError(
                f"the list has goals 0 to {self.goal_count - 1}",
                key="goal",
                value=repr(index),
                fix="choose one of them",
            )
        self._text_reads += 1
        return self._goals.make_goal(int(self._order[index]), self.product)

    def draw_goal(self, rng: random.Random) -> int:
        """Draws a goal's index by weight, as in the original."""
        cumulative = self._cumulative_weights
        position = rng.uniform(0, float(cumulative[-1]))
        # Goal 0 is never drawn, as in the original: the sums begin with 0, so the first goal has
        # place 1. The bound is for the upper end of `uniform`.
        return min(int(np.searchsorted(cumulative, position, "right")), self.goal_count - 1)

    @functools.cached_property
    def _cumulative_weights(self) -> np.ndarray:
        weights = self._goals.list_weights(np.asarray(self._order))
        return np.concatenate([[0.0], np.cumsum(weights)])

    def product(self, row: int) -> Product:
        """The product of a row (its place in load order)."""
        return self._recent_products.get_or(row, lambda: self._read_product(row))

    def _read_product(self, row: int) -> Product:
        try:
            product = Product.from_record(json.loads(self._products[row]))
        except ValueError as err:
            raise InputError(
                f"product {row} is damaged ({err})", key=self.folder, fix="prepare it again"
            ) from err
        self._text_reads += 1
        self._release_pages()
        return product

    def _release_pages(self) -> None:
        """Unmaps pages when too many were read, which keeps a worker's memory small."""
        mapped = self._index.read_bytes * _READ_AROUND + self._text_reads * _TEXT_BYTES
        if mapped > _MAPPED_BYTES:
            # Both counters start again: after this nothing is mapped.
            self._index.read_bytes = 0
            self._text_reads = 0
            self._products.release_pages()
            self._goals.texts.release_pages()
            store.release_pages(self._arrays)

    def price(self, row: int) -> float:
        """The drawn price of a row's product, in dollars."""
        return float(self._goals.prices[row])

    def row(self, asin: str) -> int | None:
        """The row of a product; None for an unknown asin."""
        # A binary search in the mapped array: no worker holds a table of all asins.
        position = int(np.searchsorted(self._asins, asin))
        if position == len(self._asins) or str(self._asins[position]) != asin:
            return None
        return int(self._asin_rows[position])

    def nouns(self, title: str) -> tuple[str, ...]:
        """The nouns of a title, by the catalogue's tagger."""
        return self._recent_nouns.get_or(title, lambda: tuple(self._tagger(title)))

    def search(self, keywords: list[str]) -> np.ndarray | None:
        """The rows of a search's products, best first, [n] i64.

        None for a search that the original cannot run.

        Args:
          keywords: Text of the search, split at single spaces; `<c>` or `<q>` as the first asks for
            a category or a query instead.
        """
        return self._recent_searches.get_or(" ".join(keywords), lambda: self._search(keywords))

    def _search(self, keywords: list[str]) -> np.ndarray | None:
        command = keywords[0]
        if command in ("<r>", "<a>") or (command == "<c>" and len(keywords) < 2):
            return None
        if command in _COMMAND_FIELDS:
            value = keywords[1] if command == "<c>" else " ".join(keywords[1:])
            return self._search_field(_COMMAND_FIELDS[command], value.strip())
        rows = self._index.search(" ".join(keywords))
        self._release_pages()
        return rows

    def _search_field(self, field: str, value: str) -> np.ndarray:
        if field not in self._field_names:
            text = (self.folder / f"filed_{field}.json").read_text(encoding="utf-8")
            self._field_names[field] = {
                name: number for number, name in enumerate(json.loads(text))
            }
        number = self._field_names[field].get(value, -1)
        return np.flatnonzero(self._arrays[f"filed_{field}"] == number)


def _no_goals(folder: Path, goals: str) -> InputError:
    """The error of a catalogue without goals of a kind."""
    origin = ""
    other_goals = "human"
    if goals == "human":
        origin = " (they come from items_human_ins.json beside the products)"
        other_goals = "synthetic"
    return InputError(
        f"the catalogue has no {goals} goals{origin}",
        key=folder,
        fix=f"choose goals={other_goals!r}",
    )


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
    """Opens a catalogue, and first prepares it into the cache folder if that is not done yet.

    Args:
      folder: Folder with `items_shuffle*.json`, `items_ins_v2*.json` and `items_human_ins.json`; or
        a prepared folder.
      goals: "human" or "synthetic".
      draw_seed: Seed with which prices and price caps are drawn as in the original; every goal is
        listed then. None: the canonical list of the catalogue, the same on any machine, without
        repeats, with disjoint splits.
      nouns: Tagger of titles: a JSON file of title -> nouns, "builtin" (also None), "spacy", or a
        function.
      seed: Seed of the canonical list's prices and caps.
      num_products: Number of entries of the product file to use; None: all.
      variant: Variant of the files in a folder with several, such as "_1000".

    Raises:
      InputError: missing or broken files, a prepared folder that does not fit its sources, an
      invalid option.
    """
    folder = Path(folder)
    if num_products is not None:
        check_whole("num_products", num_products, 1)
    tagger = open_tagger(nouns)
    return Catalogue(
        _find_prepared(folder, num_products, variant),
        goals=goals,
        draw_seed=draw_seed,
        seed=seed,
        tagger=tagger,
    )


def _find_prepared(folder: Path, num_products: int | None, variant: str | None) -> Path:
    """Finds a catalogue's prepared folder: the folder, `prepared` in it, or one in the cache."""
    if (folder / "manifest.json").is_file() and not any(folder.glob("items_shuffle*.json")):
        return folder
    sources = find_sources(folder, variant=variant)
    # Beside its sources a prepared folder can be compared with them.
    inner = folder / "prepared"
    if inner.is_dir():
        manifest = store.read_manifest(inner)
        if manifest is None:
            raise InputError(
                "incomplete or of another version", key=inner, fix=f"run `{PREPARE} {folder}` again"
            )
        names = [path.name for path in sources.paths()]
        if [entry["name"] for entry in manifest["sources"]] == names:
            if not store.matches_sources(manifest, sources):
                raise InputError(
                    f"was made from other files than those in {folder}",
                    key=inner,
                    fix=f"run `{PREPARE} {folder}` again",
                )
            # A folder for another number of products stays valid; the cache gets one for this
            # number.
            if manifest["num_products"] == num_products:
                return inner
    entries = store.describe_sources(sources)
    # Named by content: a changed source gets another folder, and running workers keep the old.
    out = cache_folder("webshop") / store.content_hash(entries, num_products)
    if store.read_manifest(out) is None:
        _LOG.info(
            "preparing %s into %s (once; `%s %s` shows a progress bar)",
            folder,
            out,
            PREPARE,
            folder,
        )
        prepare.ensure_prepared(sources, out, num_products=num_products)
    return out
