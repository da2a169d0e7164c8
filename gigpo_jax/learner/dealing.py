"""Segments -> minibatches of nearly equal numbers of steps."""

from collections.abc import Sequence

import numpy as np


def deal_segments(
    segments: Sequence[np.ndarray], minibatches: int, rng: np.random.Generator | None
) -> list[list[np.ndarray]]:
    """Shuffles segments, indices of samples, and deals them into minibatches.

    A segment with more steps than a minibatch is cut into pieces first. No minibatch is then empty,
    as long as there are enough steps, and its number of steps differs from the mean by at most the
    longest piece. Without a generator the order of segments stays.
    """
    steps = sum(map(len, segments))
    longest = longest_piece(steps, minibatches)
    pieces = [piece for segment in segments for piece in cut_segment(segment, longest)]
    order = shuffle_numbers(len(pieces), rng)
    sizes = np.array([len(pieces[piece]) for piece in order], np.int64)
    # A piece is in the minibatch that its middle step would be in if single steps were dealt.
    middles = np.cumsum(sizes) - sizes + (sizes - 1) // 2
    edges = np.cumsum([len(share) for share in np.array_split(np.arange(steps), minibatches)])
    members = np.split(np.array(order, np.int64), np.searchsorted(middles, edges[:-1]))
    return [[pieces[piece] for piece in share.tolist()] for share in members]


def shuffle_numbers(count: int, rng: np.random.Generator | None) -> list[int]:
    """Numbers below `count`, shuffled if there is a generator."""
    return list(range(count)) if rng is None else rng.permutation(count).tolist()


def longest_piece(steps: int, minibatches: int) -> int:
    """The largest number of steps of a piece that is dealt."""
    # With longer pieces a minibatch could stay empty.
    return max(steps // minibatches, 1)


def cut_segment(segment: np.ndarray, longest: int) -> list[np.ndarray]:
    """Nearly equal pieces of at most `longest` steps."""
    return np.array_split(segment, -(-len(segment) // longest))
