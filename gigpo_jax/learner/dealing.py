"""Segments or task groups -> shares of steps, one a minibatch."""

from collections.abc import Sequence

import numpy as np


def deal_segments(
    segments: Sequence[np.ndarray], minibatches: int, rng: np.random.Generator | None
) -> list[list[np.ndarray]]:
    """Shuffles segments and deals them into minibatches.

    A segment with more steps than a minibatch is cut into pieces first. No minibatch is then empty,
    as long as there are enough steps, and its number of steps differs from the mean by at most the
    longest piece; with single steps by less than one step.

    Args:
      segments: indices of the samples of each segment.
      minibatches: number of minibatches.
      rng: generator that shuffles the segments; None: their order stays.
    """
    steps = sum(map(len, segments))
    longest = _longest_piece(steps, minibatches)
    pieces = [piece for segment in segments for piece in _cut_segment(segment, longest)]
    order = _shuffle(len(pieces), rng)
    sizes = np.array([len(pieces[piece]) for piece in order], np.int64)
    # A piece is in the minibatch that its middle step would be in if single steps were dealt.
    middles = np.cumsum(sizes) - sizes + (sizes - 1) // 2
    edges = np.cumsum([len(share) for share in np.array_split(np.arange(steps), minibatches)])
    members = np.split(np.array(order, np.int64), np.searchsorted(middles, edges[:-1]))
    return [[pieces[piece] for piece in share.tolist()] for share in members]


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
    longest = _longest_piece(sum(map(_count_steps, groups)), minibatches)
    pieces: list[list[np.ndarray]] = []
    for group in groups:
        room = 0
        for segment in group:
            for part in _cut_segment(segment, longest):
                if len(part) > room:
                    pieces.append([])
                    room = longest
                pieces[-1].append(part)
                room -= len(part)
    shuffled = [pieces[piece] for piece in _shuffle(len(pieces), rng)]
    dealt: list[list[np.ndarray]] = [[] for _ in range(minibatches)]
    counts = [0] * minibatches
    for piece in sorted(shuffled, key=_count_steps, reverse=True):
        fewest = counts.index(min(counts))
        dealt[fewest] += piece
        counts[fewest] += _count_steps(piece)
    # Otherwise the first update would always have the largest group.
    return [dealt[minibatch] for minibatch in _shuffle(minibatches, rng)]


def _shuffle(count: int, rng: np.random.Generator | None) -> list[int]:
    """Numbers below `count`, shuffled if there is a generator."""
    return list(range(count)) if rng is None else rng.permutation(count).tolist()


def _longest_piece(steps: int, minibatches: int) -> int:
    # With longer pieces a minibatch could stay empty.
    return max(steps // minibatches, 1)


def _cut_segment(segment: np.ndarray, longest: int) -> list[np.ndarray]:
    """Nearly equal pieces of at most `longest` steps."""
    return np.array_split(segment, -(-len(segment) // longest))


def _count_steps(segments: Sequence[np.ndarray]) -> int:
    return sum(map(len, segments))
