"""Rows whose length and number follow the samples (batch.fit_rows)."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import local_rows
from gigpo_jax.learner.full_rows import fill_rows
from gigpo_jax.models.decoder import DecoderConfig, active_param_count

LENGTH_UNIT = 32  # fitted rows have a multiple of this number of tokens
KERNEL_UNIT = 128  # on accelerators of this one, as kernels need
FULL = 0.98  # assumed share of rows that segments fill
MICROBATCH_COST = 1000  # tokens that a microbatch costs beside its own: measured on an H200
# Cost of the config's shape of rows, relative to the best fitted one, up to which it stays: another
# shape is another program to compile.
TOLERATED_COST = 1.25
# Tokens of a row whose attention costs as much as the other layers; 7 to 14 times the usual widths.
ATTENTION_LENGTH = 8192
CPU_PLACES = 2048  # tokens of a microbatch on CPUs; with more they are not faster
SLOW_FLOP = 2e11  # of a microbatch; CPUs take some seconds


class RowFit(NamedTuple):
    """Limits of rows whose shape follows the samples.

    Attributes:
      unit: the number of rows of a host is this number times a power of two.
      places: largest number of tokens of a host's microbatch, padding included.
      fills: whether rows are filled as by `full_rows`, for devices whose attention costs what the
        segments need, however long a row is.
    """

    unit: int
    places: int
    fills: bool = False


def row_lengths(longest: int, row_length: int) -> list[int]:
    """Returns the row lengths to choose from, each at least the length of the longest segment.

    They fall from `row_length` by a factor of 2^(1/4) each.
    """
    lengths = [row_length]
    steps = 1
    while True:
        length = row_length * 2 ** (-steps / 4)
        length = -(-math.ceil(length) // LENGTH_UNIT) * LENGTH_UNIT
        if length < longest:
            return lengths
        if length < lengths[-1]:
            lengths.append(length)
        if length == LENGTH_UNIT:
            return lengths
        steps += 1


def rows_at_once(fit: RowFit, row_length: int, most_rows: int) -> int:
    """Rows of a microbatch of fitted rows.

    Args:
      fit: limits.
      row_length: T.
      most_rows: rows of the fullest minibatch.
    """
    rows = fit.unit
    while rows < most_rows and 2 * rows * row_length <= fit.places:
        rows *= 2
    return rows


def full_length(fit: RowFit, tokens: np.ndarray, longest: int, row_length: int) -> int:
    """Chooses the length of rows whose microbatches cost least.

    Args:
      fit: limits.
      tokens: [minibatches] i, tokens of the fullest host.
      longest: tokens of the longest segment.
      row_length: largest length.
    """
    lengths = range(row_length, max(longest, KERNEL_UNIT) - 1, -KERNEL_UNIT)

    def estimate_cost(length: int) -> int:
        row_counts = -(-tokens // int(FULL * length))
        rows = rows_at_once(fit, length, int(row_counts.max()))
        return int((-(-row_counts // rows)).sum()) * (rows * length + MICROBATCH_COST)

    return min(lengths, key=estimate_cost, default=row_length)


def make_fit(config: ConfigDict, mesh: Mesh) -> RowFit:
    """The limits of a config's rows."""
    places = local_rows(mesh, config.batch.rows) * config.batch.row_length
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if on_cpu:
        places = min(places, CPU_PLACES)
    return RowFit(local_rows(mesh, mesh.shape["data"] * mesh.shape["fsdp"]), places, not on_cpu)


def fit_packing(
    pack: Callable[..., Any],
    packing: Any,
    rows: int,
    longest: int,
    fit: RowFit,
    gather: Callable[[np.ndarray], np.ndarray],
) -> tuple[Any, int]:
    """Chooses the packing whose rows cost least.

    Args:
      pack: function that packs into rows of a length, by `pack_segments`.
      packing: `packing.Packing` into rows of the config's length.
      rows: B of the config.
      longest: tokens of the longest segment.
      fit: limits.
      gather: see `packing.stream_minibatches`.

    Returns:
      The packing, and B for it.
    """
    lengths = row_lengths(longest, packing.length)
    if fit.fills:
        pack = functools.partial(pack, pack_segments=fill_rows)
        packing = pack(packing.length)
        tokens = [sum(len(text.places) for text in texts) for texts in packing.placements]
        fullest = gather(np.array(tokens, np.int64)).max(0)
        lengths = [full_length(fit, fullest, longest, packing.length)]
    fitted_packings = [pack(length) if length != packing.length else packing for length in lengths]
    # The config's rows first: they stay unless others save much.
    packings = [packing, *fitted_packings]
    row_counts = np.stack([fitted.row_counts for fitted in packings])
    chosen, rows = choose_rows(fit, rows, [packing.length, *lengths], row_counts)
    return packings[chosen], rows


def choose_rows(
    fit: RowFit, rows: int, lengths: Sequence[int], row_counts: np.ndarray
) -> tuple[int, int]:
    """Chooses the packing whose rows cost least.

    Args:
      fit: limits.
      rows: B of the config.
      lengths: T of each packing, of the config first.
      row_counts: [packings, minibatches] i, rows of the fullest host.

    Returns:
      Index of the packing, and B for it.
    """
    shapes = [(lengths[0], rows)]
    for length, counts in zip(lengths[1:], row_counts[1:], strict=True):
        shapes.append((length, rows_at_once(fit, length, int(counts.max()))))
    chosen = choose_shape(fit, shapes, row_counts)
    return chosen, shapes[chosen][1]


def choose_shape(fit: RowFit, shapes: Sequence[tuple[int, int]], counts: np.ndarray) -> int:
    """Chooses the cheapest shape of rows.

    Args:
      fit: limits.
      shapes: (T, B) of each shape, the shape of the config first.
      counts: [shapes, minibatches] i, rows of the minibatches in each shape.

    Returns:
      Index of the shape.
    """
    lengths, rows = np.array(shapes).T
    places = -(-counts // rows[:, None]) * (rows * lengths)[:, None]
    if fit.fills:
        return int(np.argmin(places.sum(1)))
    costs = places.sum(1) * (1 + lengths / ATTENTION_LENGTH)
    best = int(np.argmin(costs))
    return best if costs[0] > TOLERATED_COST * costs[best] else 0


def updates_in_pieces(config: ConfigDict, shape: DecoderConfig, mesh: Mesh) -> bool:
    """Tests whether each microbatch of an update is a device call, as on CPUs if it takes seconds.

    A signal then acts after the microbatch.
    """
    if not config.batch.fit_rows or mesh.devices.flat[0].platform != "cpu":
        return False
    return 6 * active_param_count(shape) * CPU_PLACES >= SLOW_FLOP
