"""Converts a catalogue to memory-mapped files, which workers share.

A prepared folder belongs to one content of its source files; `ensure_prepared` rebuilds it when
they change.
"""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object
from gigpo_jax.core.folders import lock_folder
from gigpo_jax.env_bridge.base import Progress, no_progress
from gigpo_jax.envs.webshop.catalogue import goals, store
from gigpo_jax.envs.webshop.catalogue.goals import Template
from gigpo_jax.envs.webshop.catalogue.sources import Product, Sources, load_products
from gigpo_jax.envs.webshop.search.bm25 import IndexBuilder

CANONICAL_SEED = 0
_FIX = "get the file again"


class _TemplateWriter:
    """Writes the goal templates of one kind."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.rows: list[int] = []  # row of the product of each template
        self.numbers: list[int] = []
        self.goals: list[int] = []  # number of goals of each template
        self.attributes: list[tuple[str, ...]] = []
        self.repeated: list[int] = []  # templates equal to an earlier one of the same product
        self.distinct: dict[int, np.ndarray] = {}  # template -> its goals that are no repeats
        self.texts = store.BlobWriter(folder / f"goals_{kind}.blob")
        self._row = -1
        self._row_keys: set[Any] = set()

    def add(self, template: Template) -> None:
        content = (template.instruction, template.attributes, template.options)
        self.texts.add(json.dumps(content))
        # Templates come product by product, so only the current product's are remembered.
        if self._row != template.row:
            self._row = template.row
            self._row_keys = set()
        if content in self._row_keys:
            self.repeated.append(len(self.rows))
        self._row_keys.add(content)
        self.rows.append(template.row)
        self.numbers.append(template.number)
        self.goals.append(template.goals)
        self.attributes.append(template.attributes)

    def mark_repeats(self, product: Product) -> None:
        """Marks repeated combinations of the next template: an option may list a value twice."""
        if any(len(set(values)) < len(values) for values in product.options.values()):
            combinations = goals.option_combinations(product.options)
            self.distinct[len(self.rows)] = goals.first_positions(combinations)


class _FieldWriter:
    """A writer that numbers the values of a product's field: a search compares whole numbers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: dict[str, int] = {}
        self._rows: list[int] = []

    def add(self, product: Product) -> None:
        value = getattr(product, self.name)
        self._rows.append(self._values.setdefault(value, len(self._values)))

    def write(self, folder: Path) -> None:
        np.save(folder / f"filed_{self.name}.npy", np.array(self._rows, dtype=np.int32))
        text = json.dumps(list(self._values))
        (folder / f"filed_{self.name}.json").write_text(text, encoding="utf-8")


def _fill_folder(
    folder: Path, sources: Sources, num_products: int | None, progress: Progress
) -> dict[str, Any]:
    """Writes a prepared folder's files; returns its manifest without "files"."""
    # Hashed before they are read: a file that changes meanwhile no longer fits its entry.
    entries = store.describe_sources(sources)
    instructions = read_object(sources.instructions, _FIX)
    human = read_object(sources.human, _FIX) if sources.human is not None else {}
    index = IndexBuilder()
    products = store.BlobWriter(folder / "products.blob")
    writers = {kind: _TemplateWriter(folder, kind) for kind in goals.KINDS}
    fields = [_FieldWriter("category"), _FieldWriter("query")]
    asins: list[str] = []
    pricing: list[tuple[float, ...]] = []
    for row, product in enumerate(load_products(sources, instructions, num_products=num_products)):
        products.add(json.dumps(product.record(), ensure_ascii=False))
        index.add(product.asin, product.document())
        asins.append(product.asin)
        pricing.append(product.pricing)
        for field in fields:
            field.add(product)
        for template in goals.human_templates(row, product.asin, human):
            writers["human"].add(template)
        synthetic = goals.synthetic_template(row, product, instructions.get(product.asin))
        if synthetic is not None:
            # Before `add`: it names the template by the number that it will get.
            writers["synthetic"].mark_repeats(product)
            writers["synthetic"].add(synthetic)
        progress(1)
    products.close()
    if not asins:
        raise InputError("holds no product", key=sources.products, fix="get the file again")

    for name, array in index.build_arrays().items():
        np.save(folder / f"{name}.npy", array)
    # A sorted array is searched in place, where a dict would be loaded by every worker.
    order = np.argsort(np.array(asins), kind="stable")
    np.save(folder / "asin_sorted.npy", np.array(asins)[order])
    np.save(folder / "asin_rows.npy", order.astype(np.int32))
    for field in fields:
        field.write(folder)
    _write_prices(folder, pricing)
    counts = {kind: _write_goals(folder, kind, writers[kind], pricing) for kind in goals.KINDS}
    return {
        "format": store.FORMAT,
        "content": store.content_hash(entries, num_products),
        "sources": entries,
        "num_products": num_products,
        "products": len(asins),
        "goals": counts,
    }


def _write_prices(folder: Path, pricing: Sequence[tuple[float, ...]]) -> None:
    lows = [prices[0] for prices in pricing]
    highs = [prices[-1] for prices in pricing]
    counts = [len(prices) for prices in pricing]
    np.save(folder / "price_low.npy", np.array(lows, dtype=np.float64))
    np.save(folder / "price_high.npy", np.array(highs, dtype=np.float64))
    np.save(folder / "price_count.npy", np.array(counts, dtype=np.int8))


def _write_goals(
    folder: Path, kind: str, writer: _TemplateWriter, pricing: Sequence[tuple[float, ...]]
) -> int:
    """Writes templates, weights, canonical draws; returns the canonical list's size."""
    writer.texts.close()
    rows = np.array(writer.rows, dtype=np.int32)
    # Both kinds draw with the same seed and so have the same prices.
    rng = random.Random(CANONICAL_SEED)
    prices = goals.draw_prices(pricing, rng)
    caps = goals.draw_caps(prices[rows].tolist(), rng)
    weights = np.ones(len(rows))
    if kind == "synthetic":
        weights = goals.goal_weights(writer.attributes, writer.goals)
    starts = np.concatenate([[0], np.cumsum(writer.goals)]).astype(np.int64)
    np.save(folder / "prices.npy", prices)
    np.save(folder / f"goals_{kind}_row.npy", rows)
    np.save(folder / f"goals_{kind}_number.npy", np.array(writer.numbers, dtype=np.int32))
    np.save(folder / f"goals_{kind}_start.npy", starts)
    np.save(folder / f"goals_{kind}_cap.npy", caps)
    np.save(folder / f"goals_{kind}_weight.npy", weights)

    keep = np.ones(int(starts[-1]), dtype=bool)
    # Equal goals would stand in both splits. Only the canonical list leaves them out.
    for template in writer.repeated:
        keep[starts[template] : starts[template + 1]] = False
    for template, first in writer.distinct.items():
        is_first = np.zeros(int(starts[template + 1] - starts[template]), dtype=bool)
        is_first[first] = True
        keep[starts[template] : starts[template + 1]] &= is_first
    # Shuffled with repeats and thinned out afterwards: the order of the rest is the original's.
    order = goals.shuffle_goals(len(keep))
    order = order[keep[order]]
    np.save(folder / f"goals_{kind}_order.npy", order)
    return len(order)


def ensure_prepared(
    sources: Sources,
    out: Path,
    *,
    num_products: int | None = None,
    rebuild: bool = False,
    progress: Progress = no_progress,
) -> bool:
    """Builds a prepared folder unless one that fits exists, even if several processes call it.

    Returns:
      Whether the folder was built.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Workers of one run start together; the first one prepares, the others wait and find it.
        with lock_folder(out):
            manifest = None if rebuild else store.read_manifest(out)
            same_size = manifest is not None and manifest["num_products"] == num_products
            if manifest is not None and same_size and store.matches_sources(manifest, sources):
                return False
            # Folders of a killed builder; the lock excludes a running one.
            for remnant in out.parent.glob(f".{out.name}-*"):
                shutil.rmtree(remnant, ignore_errors=True)
            store.write_rows_folder(
                out, lambda folder: _fill_folder(folder, sources, num_products, progress)
            )
    except OSError as err:
        raise InputError(
            f"cannot be written ({err})", key=out, fix="name another place with --out OUT"
        ) from err
    return True
