"""Rows whose shape follows the samples."""

import numpy as np
import pytest

from gigpo_jax.learner.fitted_rows import (
    RowFit,
    choose_shape,
    full_length,
    row_lengths,
    rows_at_once,
)
from gigpo_jax.learner.full_rows import fill_rows
from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.rows import pack_rows
from gigpo_jax.learner.samples import Sample

FIT = RowFit(unit=1, places=2048)
FULL_FIT = RowFit(unit=1, places=2048, fills=True)


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
    assert choose_shape(FIT, [(100, 1), (90, 1)], counts) == 1
    assert choose_shape(FIT, [(100, 1), (90, 1)], np.array([[3], [3]])) == 0
    assert choose_shape(FULL_FIT, [(100, 1), (90, 1)], np.array([[3], [3]])) == 1


def test_lengths_of_full_rows_leave_no_microbatch_half_empty():
    # 2 x 768 places; 2 x 1024 and 2 x 896 are more, 3 rows of 640 are two microbatches of 2.
    assert full_length(FULL_FIT, np.array([1500]), 300, 1024) == 768
    assert full_length(FULL_FIT, np.array([1500]), 900, 1024) == 1024
    assert full_length(FULL_FIT, np.array([1500]), 2000, 1024) == 1024  # packing refuses it


def test_full_rows_have_segments_whose_lengths_add_up():
    lengths = np.array([6, 5, 4, 0, 3, 3, 3])
    ones = np.ones(7, int)
    assert fill_rows(lengths, ones, 12, 12) == [[0, 4, 5], [1, 2, 6]]
    assert len(pack_rows(lengths, ones, 12, 12)) == 3
    # No room for three responses in a row: the shortest segment waits.
    assert fill_rows(lengths, ones, 12, 2) == [[0, 4], [1, 2], [5, 6]]


def test_full_rows_hold_each_segment_once():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 900, 300)
    responses = np.minimum(rng.integers(1, 200, 300), lengths)
    rows = fill_rows(lengths, responses, 1024, 256)
    assert sorted(segment for row in rows for segment in row) == list(range(300))
    assert max(lengths[row].sum() for row in rows) <= 1024
    assert max(responses[row].sum() for row in rows) <= 256


def test_steps_of_published_lengths_fill_microbatches_of_a_device():
    rng = np.random.default_rng(0)
    samples = []
    for tokens in rng.normal(470, 130, 256).clip(250, 900).astype(int):
        samples += make_samples(1, tokens + 111, 112)
    shares = []
    for fit in (RowFit(1, 32768), RowFit(1, 32768, fills=True)):
        (batch,) = pack(samples, steps=256, fit=fit)
        assert packing_stats([batch])["batch/steps"] == 256
        shares.append(packing_stats([batch])["batch/padding_share"])
    assert shares[1] < 0.04 < 0.08 < shares[0]


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
