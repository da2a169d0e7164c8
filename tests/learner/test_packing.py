"""Packing: every token is in exactly one place, and minibatches have whole steps."""

import dataclasses
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Task, anchor_hash
from gigpo_jax.learner.dealing import deal_segments
from gigpo_jax.learner.packing import (
    StepBatch,
    make_minibatches,
    packing_stats,
)
from gigpo_jax.learner.rows import pack_rows, response_capacity
from gigpo_jax.learner.samples import Sample, step_samples, training_samples
from gigpo_jax.learner.step_columns import (
    bucket,
    step_columns,
)
from gigpo_jax.trajectory import StepCredit, Trajectory, Turn, finished_steps
from tests.learner.exchange import Gather, on_two_hosts
from tests.turns import make_turn


def make_samples(lengths: list[tuple[int, int]], seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [
        Sample(
            prompt_tokens=rng.integers(1, 1000, p).astype(np.int32),
            response_tokens=rng.integers(1, 1000, r).astype(np.int32),
            logprobs=rng.normal(size=r).astype(np.float32),
            advantage=float(np.float32(rng.normal())),
            weight=float(np.float32(rng.uniform(0.5, 1))),
        )
        for p, r in lengths
    ]


def unpack(batch: StepBatch) -> list[tuple]:
    """Reads the samples back from the arrays alone."""
    samples = []
    for m in range(int(batch.microbatches)):
        for b in range(batch.tokens.shape[1]):
            segments = batch.segment_ids[m, b]
            is_response = batch.weight[m, b] > 0
            owner = batch.responses[m, b]
            assert owner.max() == segments.max()
            for segment in range(1, segments.max() + 1):
                places = np.flatnonzero(segments == segment)
                rows = is_response & (owner == segment)
                assert (np.diff(places) == 1).all()
                assert (batch.positions[m, b, places] == np.arange(len(places))).all()
                index = batch.response_index[m, b, rows]
                targets = batch.targets[m, b, rows]
                tokens = batch.tokens[m, b]
                # A target is the input of the next position.
                assert (tokens[index[1:]] == targets[:-1]).all()
                assert index[-1] == places[-1]
                whole = np.concatenate([tokens[places], targets[-1:]])
                samples.append(
                    (
                        tuple(whole[: -len(targets)].tolist()),
                        tuple(targets.tolist()),
                        tuple(batch.behaviour[m, b, rows].tolist()),
                        *set(batch.advantage[m, b, rows].tolist()),
                        *set(batch.weight[m, b, rows].tolist()),
                    )
                )
    return samples


def as_tuple(sample: Sample) -> tuple:
    return (
        tuple(sample.prompt_tokens.tolist()),
        tuple(sample.response_tokens.tolist()),
        tuple(sample.logprobs.tolist()),
        sample.advantage,
        sample.weight,
    )


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 24)), min_size=1, max_size=60),
    steps=st.integers(1, 70),
    rows=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_every_sample_is_in_exactly_one_place(lengths, steps, rows, seed) -> None:
    samples = make_samples(lengths, seed)
    batches = make_minibatches(
        samples, steps=steps, row_length=64, rows=rows, rng=np.random.default_rng(seed)
    )
    assert Counter(s for batch in batches for s in unpack(batch)) == Counter(map(as_tuple, samples))
    sizes = [sum(b.segment_ids[: b.microbatches].max(-1).sum() for _ in [0]) for b in batches]
    assert len(batches) == -(-len(samples) // steps)
    assert max(sizes) - min(sizes) <= 1
    for batch in batches:
        padding = batch.segment_ids == 0
        assert not batch.tokens[padding].any()
        assert not batch.positions[padding].any()
        assert not batch.weight[batch.microbatches :].any()
        assert not batch.segment_ids[batch.microbatches :].any()
        assert (batch.response_index < 64).all()
        assert (
            len({b.tokens.shape for b in batches}) == len({b.targets.shape for b in batches}) == 1
        )
    stats = packing_stats(batches)
    assert stats["batch/steps"] == len(samples)
    assert stats["batch/tokens"] == sum(p + r - 1 for p, r in lengths)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=80), st.integers(50, 100)
)
def test_rows_respect_both_capacities_and_are_reasonably_full(pairs, row_length) -> None:
    lengths, responses = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    rows = pack_rows(lengths, responses, row_length, 20)
    assert sorted(i for row in rows for i in row) == np.flatnonzero(lengths).tolist()
    assert all(lengths[row].sum() <= row_length and responses[row].sum() <= 20 for row in rows)
    plain = pack_rows(lengths, np.zeros_like(responses), row_length, 20)
    assert (
        sum(2 * lengths[row].sum() <= row_length for row in plain) <= 1
    )  # two half-empty rows would have been one


def household(n: int, seed: int = 0) -> list[Sample]:
    """Samples with lengths as in published ALFWorld training."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.normal(620, 170, n), 250, 2048).astype(int)
    responses = np.clip(rng.lognormal(4.6, 0.5, n), 20, 512).astype(int)
    return make_samples(list(zip(prompts.tolist(), responses.tolist())))


def test_padding_share_of_household_batches_is_at_most_five_percent() -> None:
    samples = household(1500)
    for row_length, rows in ((4096, 1), (8192, 1), (4096, 2)):
        batches = make_minibatches(
            samples, steps=256, row_length=row_length, rows=rows, rng=np.random.default_rng(0)
        )
        assert len(batches) == 6
        assert packing_stats(batches)["batch/padding_share"] <= 0.05
    rng = np.random.default_rng(1)
    small = make_samples(
        [(int(rng.integers(40, 52)), int(rng.integers(4, 9))) for _ in range(1100)]
    )
    batches = make_minibatches(small, steps=256, row_length=448, rows=2, rng=rng)
    assert packing_stats(batches)["batch/padding_share"] <= 0.05


def test_packing_takes_milliseconds() -> None:
    lengths = np.random.default_rng(0).integers(300, 1500, 1500)
    best = min(_seconds(lambda: pack_rows(lengths, lengths // 8, 8192, 2048)) for _ in range(5))
    assert best < 0.05


def _seconds(call) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def test_same_seed_same_minibatches() -> None:
    samples = household(50)
    first, second, reshuffled = (
        make_minibatches(
            samples, steps=16, row_length=2560, rows=2, rng=np.random.default_rng([7, seed])
        )
        for seed in (3, 3, 4)
    )
    for a, b in zip(first, second, strict=True):
        assert (a.tokens == b.tokens).all()
        assert (a.advantage == b.advantage).all()
    assert any(
        not np.array_equal(np.unique(a.advantage), np.unique(b.advantage))
        for a, b in zip(first, reshuffled)
    )


def test_a_response_without_tokens_takes_no_room() -> None:
    samples = make_samples([(5, 3), (60, 0), (6, 2)])
    (batch,) = make_minibatches(
        samples, steps=3, row_length=16, rows=1, rng=np.random.default_rng(0)
    )
    assert sorted(unpack(batch)) == sorted(as_tuple(sample) for sample in (samples[0], samples[2]))


def test_a_sample_longer_than_a_row_is_refused() -> None:
    with pytest.raises(InputError, match=r"batch\.row_length=64: a sample has 69 tokens"):
        make_minibatches(
            make_samples([(60, 10)]), steps=1, row_length=64, rows=1, rng=np.random.default_rng(0)
        )


def test_hosts_agree_on_shapes_and_trip_counts() -> None:
    """Two hosts (threads) with unequal work exchange numbers and end with the same plan."""
    hosts = [household(40, seed=1), household(13, seed=2)]

    def plan(host: int, gather: Gather) -> list[StepBatch]:
        rng = np.random.default_rng(0)
        return make_minibatches(
            hosts[host], steps=20, row_length=2560, rows=2, rng=rng, gather=gather
        )

    a, b = on_two_hosts(plan)
    assert len(a) == len(b) == 3  # 53 steps in minibatches of 20
    assert [x.microbatches for x in a] == [x.microbatches for x in b]
    assert {x.targets.shape for x in a} == {x.targets.shape for x in b}
    assert packing_stats(a)["batch/steps"] + packing_stats(b)["batch/steps"] == 53


def test_steps_of_aborted_trajectories_are_left_out() -> None:
    def turn(i: int) -> Turn:
        return make_turn(
            prompt_tokens=np.array([i, 1], np.int32),
            logprobs=np.array([-float(i)], np.float32),
            anchor=f"state {i % 2}",
            reward=float(i),
            penalty=0.5 * i,
        )

    task = Task("t", "", "train")
    trajectories = [
        Trajectory(task, 0, 0, [turn(1), turn(2)]),
        Trajectory(task, 0, 1, [turn(3)], aborted=True),
        Trajectory(task, 4, 0, [turn(4)]),
    ]
    steps = finished_steps(trajectories)
    inputs = step_columns(steps)
    assert inputs.mask.sum() == 3
    assert inputs.mask[:3].all()
    assert len(inputs.mask) == 256
    assert inputs.reward[:3].tolist() == [1, 2, 4]
    assert inputs.penalty[:3].tolist() == [0.5, 1, 2]
    assert inputs.trajectory[:3].tolist() == [0, 0, 2]
    assert inputs.step[:3].tolist() == [0, 1, 0]
    assert inputs.group[:3].tolist() == [0, 0, 4]
    assert [tuple(a) for a in inputs.anchor[:3].tolist()] == [
        anchor_hash(f"state {i}") for i in (1, 0, 0)
    ]
    total = np.arange(3, dtype=np.float32) + 7
    credit = StepCredit(total, total, total, np.zeros(3, np.int32))
    samples = training_samples(step_samples(steps), credit, [1.0] * 3, {})
    assert [(s.prompt_tokens[0], s.logprobs[0], s.advantage) for s in samples] == [
        (1, -1, 7),
        (2, -2, 8),
        (4, -4, 9),
    ]
    assert step_columns([]).mask.sum() == 0


def test_small_numbers_by_hand() -> None:
    assert [bucket(n) for n in (1, 256, 257, 384, 385, 513, 769)] == [
        256,
        256,
        384,
        384,
        512,
        768,
        1024,
    ]
    assert (
        response_capacity(tokens=1000, responses=100, longest_response=10, row_length=800) == 100
    )  # 96 wanted
    assert (
        response_capacity(tokens=1000, responses=100, longest_response=101, row_length=800) == 200
    )
    assert response_capacity(tokens=10, responses=10, longest_response=10, row_length=80) == 80
    assert pack_rows(np.array([3, 5, 2, 4]), np.ones(4, int), 7, 9) == [[1, 2], [3, 0]]
    steps = [np.array([n]) for n in range(7)]
    groups = deal_segments(steps, 3, np.random.default_rng(0))
    # Single steps are dealt in the order of their permutation.
    order = np.random.default_rng(0).permutation(7).tolist()
    assert [np.concatenate(group).tolist() for group in groups] == [
        order[:3],
        order[3:5],
        order[5:],
    ]


def test_advantages_weights_and_action_masks_may_differ_between_tokens():
    samples = make_samples([(3, 2), (4, 5), (2, 0), (5, 3)])
    samples = [
        dataclasses.replace(
            sample,
            advantage=np.arange(len(sample.response_tokens)) + 10.0 * n,
            weight=np.arange(len(sample.response_tokens)) + 1.0,
            fields={"action_mask": np.arange(len(sample.response_tokens)) % 2 == n % 2},
        )
        for n, sample in enumerate(samples)
    ]
    settings = {"steps": 8, "row_length": 16, "rows": 2, "rng": np.random.default_rng(0)}
    (batch,) = make_minibatches(samples, **settings, fields={"action_mask": np.bool_})
    assert make_minibatches(samples, **settings)[0].action_mask is None
    is_response = batch.weight > 0
    tokens = sorted(
        zip(batch.advantage[is_response], batch.weight[is_response], batch.action_mask[is_response])
    )
    assert tokens == sorted(
        token
        for sample in samples
        for token in zip(sample.advantage, sample.weight, sample.fields["action_mask"], strict=True)
    )
    assert not batch.action_mask[~is_response].any()


def test_a_run_has_one_shape_of_minibatches() -> None:
    """Otherwise a program would compile whenever episodes become longer or shorter."""
    lengths = {"few": [(3, 2)] * 4, "many": [(20, 12)] * 32}
    shapes = {}
    for name, samples in lengths.items():
        batches = make_minibatches(
            make_samples(samples),
            steps=32,
            row_length=64,
            rows=1,
            rng=np.random.default_rng(0),
            longest=31,
        )
        assert sum(len(unpack(batch)) for batch in batches) == len(samples)
        shapes[name] = {batch.tokens.shape for batch in batches}
    # 16 rows of two samples of 31 tokens.
    assert shapes == {"few": {(16, 1, 64)}, "many": {(16, 1, 64)}}
