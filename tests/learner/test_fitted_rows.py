"""Rows whose shape follows the samples."""

import numpy as np
import pytest

from gigpo_jax.learner.fitted_rows import RowFit, choose_shape, row_lengths, rows_at_once
from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.samples import Sample

FIT = RowFit(unit=1, places=2048)


def make_samples(count: int, tokens: int, response: int = 8) -> list[Sample]:
    """Samples of equal length; `Sample.length` is `tokens`."""
    prompt = np.arange(tokens + 1 - response, dtype=np.int32)
    reply = np.arange(response, dtype=np.int32)
    return [Sample(prompt + n, reply, np.zeros(response, np.float32)) for n in range(count)]


def pack(samples, *, row_length=4096, rows=8, steps=64, **settings):
    rng = np.random.default_rng(0)
    return make_minibatches(
        samples, steps=steps, row_length=row_length, rows=rows, rng=rng, **settings
    )


def test_row_lengths_are_quarters_of_a_halving():
    # 1024, then 2^(-1/4), 2^(-2/4), 2^(-3/4) of it, rounded up to 32.
    assert row_lengths(500, 1024) == [1024, 864, 736, 640, 512]
    assert row_lengths(1024, 1024) == [1024]
    assert row_lengths(2000, 1024) == [1024]  # too long: packing refuses it
    assert row_lengths(1, 40) == [40, 32]


@pytest.mark.parametrize(
    ("unit", "length", "most_rows", "rows"),
    [(1, 640, 1, 1), (1, 640, 13, 2), (2, 640, 1, 2), (1, 128, 9, 16), (1, 4096, 9, 1)],
)
def test_rows_at_once_fill_the_places(unit, length, most_rows, rows):
    assert rows_at_once(RowFit(unit, 2048), length, most_rows) == rows


def test_shape_of_the_config_stays_unless_another_saves_a_fifth():
    # 4 x 100 places against 3 x 100 and 90: 400 / 270 saves, 300 / 270 does not.
    counts = np.array([[4], [3]])
    assert choose_shape([(100, 1), (90, 1)], counts) == 1
    assert choose_shape([(100, 1), (90, 1)], np.array([[3], [3]])) == 0


def test_few_short_samples_take_few_places():
    samples = make_samples(8, 200)
    (plain,) = pack(samples)
    (fitted,) = pack(samples, fit=FIT)
    assert plain.segment_ids.shape[1:] == (8, 4096)
    computed = fitted.segment_ids[: int(fitted.microbatches)]
    assert computed.size <= 2048
    assert packing_stats([fitted])["batch/tokens"] == 1600
    assert packing_stats([fitted])["batch/steps"] == 8


def test_full_rows_keep_the_shape_of_the_config():
    (batch,) = pack(make_samples(40, 128), row_length=1024, rows=1, fit=FIT)
    assert batch.segment_ids.shape[1:] == (1, 1024)


def test_rows_of_hosts_have_one_shape():
    """Another host has longer samples: this one takes its length, and its number of rows."""

    def gather(values: np.ndarray) -> np.ndarray:
        other = values.copy()
        # [samples, tokens, responses, longest response, images, longest, ...] of the other host.
        if len(values) == 8:
            other[5] = 900
        return np.stack([values, other])

    (batch,) = pack(make_samples(8, 200), steps=64, fit=FIT, gather=gather)
    assert batch.segment_ids.shape[2] >= 900
