"""Converts a catalogue to memory-mapped files, which workers share.

A prepared folder belongs to one content of its source files; `ensure` rebuilds it when they change.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.base import Progress, no_progress
from gigpo_jax.env_bridge.paths import locked
from gigpo_jax.envs.webshop.catalogue import goals, store
from gigpo_jax.envs.webshop.catalogue.goals import Template
from gigpo_jax.envs.webshop.catalogue.sources import Sources, load_products
from gigpo_jax.envs.webshop.search.bm25 import IndexBuilder
from gigpo_jax.errors import InputError
from gigpo_jax.files import read_object

CANONICAL_SEED = 0
_FIX = "get the file again"


class _Templates:
    """Writes the goal templates of one kind."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self.items: list[tuple[int, int, int]] = []  # row, number, goals
        self.attributes: list[tuple[str, ...]] = []
        self.repeated: list[int] = []  # templates equal to an earlier one of the same product
        self.texts = store.BlobWriter(folder / f"goals_{kind}.blob")
        self._of_row: tuple[int, set[Any]] = (-1, set())

    def add(self, template: Template) -> None:
        self.texts.add(json.dumps([template.instruction, template.attributes, template.options]))
        if self._of_row[0] != template.row:
            self._of_row = (template.row, set())
        key = (template.instruction, template.attributes, template.options)
        if key in self._of_row[1]:
            self.repeated.append(len(self.items))
        self._of_row[1].add(key)
        self.items.append((template.row, template.number, template.goals))
        self.attributes.append(template.attributes)


def _fill(folder: Path, sources: Sources, num_products: int | None, progress: Progress) -> dict[str, Any]:
    """Writes the files of a prepared folder; returns its manifest without "files"."""
    described = store.describe(sources)
    instructions = read_object(sources.instructions, _FIX)
    human = read_object(sources.human, _FIX) if sources.human is not None else {}
    index = IndexBuilder()
    products = store.BlobWriter(folder / "products.blob")
    templates = {kind: _Templates(folder, kind) for kind in goals.KINDS}
    asins: list[str] = []
    pricing: list[tuple[float, ...]] = []
    repeats: dict[int, np.ndarray] = {}
    filed: dict[str, dict[str, int]] = {"category": {}, "query": {}}
    files: dict[str, list[int]] = {"category": [], "query": []}
    for row, product in enumerate(load_products(sources, instructions, num_products=num_products)):
        products.add(json.dumps(product.record(), ensure_ascii=False))
        index.add(product.asin, product.document())
        asins.append(product.asin)
        pricing.append(product.pricing)
        for name, known in filed.items():
            files[name].append(known.setdefault(getattr(product, name), len(known)))
        for template in goals.human_templates(row, product.asin, human):
            templates["human"].add(template)
        synthetic = goals.synthetic_template(row, product, instructions.get(product.asin))
        if synthetic is not None:
            if any(len(set(values)) < len(values) for values in product.options.values()):
                repeats[len(templates["synthetic"].items)] = goals.distinct(goals.combinations(product.options))
            templates["synthetic"].add(synthetic)
        progress(1)
    products.close()
    if not asins:
        raise InputError(f"{sources.products}: holds no product; get the file again")
    for name, array in index.arrays().items():
        np.save(folder / f"{name}.npy", array)
    by_asin = np.argsort(np.array(asins), kind="stable")
    np.save(folder / "asin_sorted.npy", np.array(asins)[by_asin])
    np.save(folder / "asin_rows.npy", by_asin.astype(np.int32))
    for name, known in filed.items():
        np.save(folder / f"filed_{name}.npy", np.array(files[name], dtype=np.int32))
        (folder / f"filed_{name}.json").write_text(json.dumps(list(known)), encoding="utf-8")
    counts = _write_goals(folder, templates, pricing, repeats)
    return {
        "format": store.FORMAT,
        "content": store.content_hash(described, num_products),
        "sources": described,
        "num_products": num_products,
        "products": len(asins),
        "goals": counts,
    }


def _write_goals(
    folder: Path, templates: dict[str, _Templates], pricing: list[tuple[float, ...]], repeats: dict[int, np.ndarray]
) -> dict[str, int]:
    """Writes templates, weights and the canonical draws; returns the size of each canonical list."""
    width = np.array([len(p) for p in pricing], dtype=np.int8)
    np.save(folder / "price_low.npy", np.array([p[0] for p in pricing], dtype=np.float64))
    np.save(folder / "price_high.npy", np.array([p[-1] for p in pricing], dtype=np.float64))
    np.save(folder / "price_count.npy", width)
    counts = {}
    for kind, made in templates.items():
        made.texts.close()
        items = np.array(made.items, dtype=np.int64).reshape(-1, 3)
        rng = random.Random(CANONICAL_SEED)
        prices = goals.draw_prices(pricing, rng)
        np.save(folder / "prices.npy", prices)
        np.save(folder / f"goals_{kind}_row.npy", items[:, 0].astype(np.int32))
        np.save(folder / f"goals_{kind}_number.npy", items[:, 1].astype(np.int32))
        starts = np.concatenate([[0], np.cumsum(items[:, 2])]).astype(np.int64)
        np.save(folder / f"goals_{kind}_start.npy", starts)
        np.save(folder / f"goals_{kind}_cap.npy", goals.draw_caps(prices[items[:, 0]].tolist(), rng))
        if kind == "human":
            weight = np.ones(len(items))
        else:
            weight = goals.weights(made.attributes, items[:, 2].tolist())
        np.save(folder / f"goals_{kind}_weight.npy", weight)
        keep = np.ones(int(starts[-1]), dtype=bool)
        for template in made.repeated:
            keep[starts[template] : starts[template + 1]] = False
        for template, first in (repeats if kind == "synthetic" else {}).items():
            part = np.zeros(int(starts[template + 1] - starts[template]), dtype=bool)
            part[first] = True
            keep[starts[template] : starts[template + 1]] &= part
        order = goals.shuffled(int(starts[-1]))
        order = order[keep[order]]
        np.save(folder / f"goals_{kind}_order.npy", order)
        counts[kind] = len(order)
    return counts


def ensure(
    sources: Sources,
    out: Path,
    *,
    num_products: int | None = None,
    rebuild: bool = False,
    progress: Progress = no_progress,
) -> bool:
    """Builds a prepared folder unless one that fits exists; returns whether. Several processes may call it at once."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with locked(out):
            manifest = None if rebuild else store.read_manifest(out)
            if manifest is not None and manifest["num_products"] == num_products and store.fits(manifest, sources):
                return False
            for left_over in out.parent.glob(f".{out.name}-*"):  # of a killed builder; the lock excludes a running one
                shutil.rmtree(left_over, ignore_errors=True)
            store.write_folder(out, lambda folder: _fill(folder, sources, num_products, progress))
    except OSError as err:
        raise InputError(f"{out}: cannot be written ({err}); name another place with --out OUT") from err
    return True
