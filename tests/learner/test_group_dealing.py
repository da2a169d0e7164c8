"""Whole task groups in minibatches."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.learner.group_dealing import deal_groups
from gigpo_jax.learner.packing import (
    make_minibatches,
)
from gigpo_jax.learner.samples import Sample


@settings(deadline=None, max_examples=60)
@given(
    units=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=6), min_size=1, max_size=12),
    minibatches=st.integers(1, 12),
    seed=st.integers(0, 2**31),
)
def test_task_groups_are_dealt_whole(units, minibatches, seed) -> None:
    sizes = list(itertools.chain.from_iterable(units))
    steps = sum(sizes)
    minibatches = min(minibatches, steps)
    segments = iter(np.split(np.arange(steps), np.cumsum(sizes)[:-1]))
    groups = [[next(segments) for _ in unit] for unit in units]
    dealt = deal_groups(groups, minibatches, np.random.default_rng(seed))
    homes = {
        number: index
        for index, minibatch in enumerate(dealt)
        for piece in minibatch
        for number in piece.tolist()
    }
    assert sorted(homes) == list(range(steps))
    # No update is without steps.
    assert len(set(homes.values())) == len(dealt) == minibatches
    longest = max(steps // minibatches, 1)
    for group in groups:
        members = np.concatenate(group).tolist()
        if len(members) <= longest:
            assert len({homes[number] for number in members}) == 1
    for segment in itertools.chain.from_iterable(groups):
        assert len(segment) > longest or len({homes[n] for n in segment.tolist()}) == 1
    counts = [sum(map(len, minibatch)) for minibatch in dealt]
    # The fullest one got its last piece when it had the fewest steps.
    assert max(counts) - min(counts) <= longest


def make_groups(*sizes: int) -> list[list[np.ndarray]]:
    """Task groups of so many single steps."""
    ends = np.cumsum(sizes)
    return [[np.array([n]) for n in range(end - size, end)] for end, size in zip(ends, sizes)]


def test_task_groups_are_dealt_to_minibatches_of_nearly_equal_size_by_hand() -> None:
    """A group of 8 in minibatches of 5 has pieces of 5 and 3."""

    def deal(minibatches: int, *sizes: int) -> list[list[int]]:
        dealt = deal_groups(make_groups(*sizes), minibatches, None)
        return [np.concatenate(minibatch).tolist() for minibatch in dealt]

    assert deal(3, 8, 8) == [[0, 1, 2, 3, 4], [8, 9, 10, 11, 12], [5, 6, 7, 13, 14, 15]]
    assert deal(2, 1, 2, 3, 4) == [[6, 7, 8, 9, 0], [3, 4, 5, 1, 2]]
    # The first minibatch is not always the largest.
    first = {
        len(deal_groups(make_groups(3, 2), 2, np.random.default_rng(seed))[0]) for seed in range(9)
    }
    assert first == {2, 3}


def test_minibatches_of_task_groups() -> None:
    """Groups of 4 steps; a minibatch of 8 has two of them, one of 3 a part of one."""
    samples = [
        Sample(
            np.array([(1, 3, 2, 4)[number // 4], number % 4], np.int32),
            np.array([2], np.int32),
            np.zeros(1, np.float32),
            float(number),
        )
        for number in range(16)
    ]
    groups = [number % 4 for number in range(16)]

    def deal(steps: int, seed: int) -> list[list[int]]:
        batches = make_minibatches(
            samples,
            steps=steps,
            row_length=64,
            rows=1,
            rng=np.random.default_rng(seed),
            groups=groups,
        )
        return [sorted(batch.advantage[batch.weight > 0].astype(int).tolist()) for batch in batches]

    for batch in deal(8, 0):
        assert len(batch) == 8
        assert len({groups[number] for number in batch}) == 2
    assert deal(8, 0) == deal(8, 0)
    # The seed decides which groups meet.
    assert len({str(sorted(deal(8, seed))) for seed in range(9)}) > 1
    # Halves of a group are neighbours in the order of tokens.
    small = deal(3, 0)
    assert sorted(map(len, small)) == [2, 2, 2, 2, 4, 4]
    assert all((number // 4 ^ 2) * 4 + number % 4 in batch for batch in small for number in batch)
