"""Task groups -> shares of steps, one a minibatch; texts that begin alike stand side by side."""

from collections.abc import Sequence

import numpy as np

from gigpo_jax.learner.dealing import (
    cut_segment,
    deal_segments,
    longest_piece,
    shuffle_numbers,
)
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.shared_prefixes import order_texts


def deal_ordered(
    samples: Sequence[Sample],
    segments: Sequence[np.ndarray],
    groups: Sequence[int] | None,
    minibatches: int,
    rng: np.random.Generator | None,
) -> list[list[np.ndarray]]:
    """Deals segments in the order of their tokens, or the task groups that have them."""
    # The steps of a piece are then neighbours, which share most.
    ordered = sort_segments(samples, segments)
    if groups is None:
        return deal_segments(ordered, minibatches, rng)
    units: dict[int, list[np.ndarray]] = {}
    for segment in ordered:
        units.setdefault(groups[segment[0]], []).append(segment)
    return deal_groups(list(units.values()), minibatches, rng)


def deal_groups(
    groups: Sequence[Sequence[np.ndarray]], minibatches: int, rng: np.random.Generator | None
) -> list[list[np.ndarray]]:
    """Deals task groups into minibatches of nearly equal size.

    The largest group comes first, and each goes to the minibatch with the fewest steps. From a
    group with more steps than a minibatch, pieces as large as a minibatch are cut off first.

    Args:
      groups: segments of each group, as indices of their samples.
      minibatches: number of minibatches; none is empty if there are enough steps.
      rng: generator that shuffles equal groups, and the minibatches; None: their order stays.
    """
    longest = longest_piece(sum(map(_count_steps, groups)), minibatches)
    pieces: list[list[np.ndarray]] = []
    for group in groups:
        room = 0
        for segment in group:
            for part in cut_segment(segment, longest):
                if len(part) > room:
                    pieces.append([])
                    room = longest
                pieces[-1].append(part)
                room -= len(part)
    shuffled = [pieces[piece] for piece in shuffle_numbers(len(pieces), rng)]
    dealt: list[list[np.ndarray]] = [[] for _ in range(minibatches)]
    counts = [0] * minibatches
    for piece in sorted(shuffled, key=_count_steps, reverse=True):
        fewest = counts.index(min(counts))
        dealt[fewest] += piece
        counts[fewest] += _count_steps(piece)
    # Otherwise the first update would always have the largest group.
    return [dealt[minibatch] for minibatch in shuffle_numbers(minibatches, rng)]


def _count_steps(segments: Sequence[np.ndarray]) -> int:
    return sum(map(len, segments))


def sort_segments(samples: Sequence[Sample], segments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Segments in the order of their tokens."""
    order = order_texts([[samples[i] for i in members] for members in segments])
    return [segments[index] for index in order]
