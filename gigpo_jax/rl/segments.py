"""Sets of rows that share a key, and statistics over them, in jit.

A *segment* is a set of rows that share a key. Its number is the index of its first row, so row n
belongs to segment `segment[n] <= n`, and is its first row if they are equal. Rows that belong to
nothing (masked ones, no members) carry the number N, which scatters drop.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike


def differs_from_previous(*keys: Array) -> Array:
    """Marks the rows, [N] bool, where any key [N] differs from the row before; row 0 does."""
    change = jnp.zeros(keys[0].shape[0] - 1, bool)
    for key in keys:
        change |= key[1:] != key[:-1]
    return jnp.concatenate([jnp.ones(1, bool), change])


def lexicographic_order(member: Array, *keys: Array) -> Array:
    """Finds the stable order of rows, [N] i32, that sorts members by several keys; others are last.

    Members that are in order already, as a rollout delivers them, are not sorted again: the sort is
    by far the most expensive operation here.

    Args:
      member: [N] bool, rows to sort.
      *keys: [N] integer arrays, the most significant first; the keys of other rows have no effect.
    """
    rows = member.shape[0]
    index = jnp.arange(rows, dtype=jnp.int32)
    members = jnp.cumsum(member, dtype=jnp.int32)
    # A stable partition by running counts: members move to the front and keep their order.
    position = jnp.where(member, members - 1, members[-1] + index - members)
    order = jnp.zeros(rows, jnp.int32).at[position].set(index, unique_indices=True)
    outside = index >= members[-1]
    keys = tuple(key[order] for key in keys)
    # A pair of neighbours is compared by a key only where both are members and all keys
    # before are equal.
    descends = jnp.zeros(rows - 1, bool)
    equal = ~outside[1:]
    for key in keys:
        descends |= equal & (key[1:] < key[:-1])
        equal &= key[1:] == key[:-1]
    return lax.cond(
        jnp.any(descends),
        # `outside` is the first key, so other rows stay last whatever their keys hold.
        # The sort is stable.
        lambda: lax.sort((outside, *keys, order), num_keys=1 + len(keys))[-1],
        lambda: order,
    )


def number_runs(start: Array, member: Array) -> Array:
    """Numbers the contiguous runs of members, [N] i32, that begin at `start` [N] bool."""
    rows = start.shape[0]
    index = jnp.arange(rows, dtype=jnp.int32)
    # The largest start so far is the first row of the run.
    return jnp.where(member, lax.cummax(jnp.where(start, index, 0)), rows)


def number_segments(member: Array, *keys: Array) -> Array:
    """Numbers the sets of members, in any order, that share all keys (integers of 32 bits).

    Rows meet in the slots of a table by a hash of their keys. The first row of a slot claims it,
    rows with exactly its keys join, and the others try another hash; every round settles at least
    one key and at this load nearly all of them, so two or three rounds do. A sort by the keys finds
    the same sets in ten times the time (CPU, 25,600 rows).
    """
    rows = member.shape[0]
    # At least four slots a row: few keys meet in one slot, so few rounds follow the first.
    bits = max((4 * rows - 1).bit_length(), 1)
    index = jnp.arange(rows, dtype=jnp.int32)
    words = [lax.bitcast_convert_type(key, jnp.uint32) for key in keys]

    def settle(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        seed, segment = carry
        is_open = member & (segment == rows)
        slot = (_mix_words(seed, words) >> (32 - bits)).astype(jnp.int32)
        claims = jnp.where(is_open, slot, 1 << bits)  # out of bounds: dropped
        # The smallest index wins, in any order of execution: a segment gets the number of its first
        # row, and results are the same on all devices.
        owner = jnp.full(1 << bits, rows, jnp.int32).at[claims].min(index)[slot]
        # The keys are compared, not their hashes: a collision costs a round and never joins two
        # keys. Slots without a claim hold N, which the index below must not reach.
        joins = is_open
        for word in words:
            joins &= word[jnp.minimum(owner, rows - 1)] == word
        return seed + jnp.uint32(1), jnp.where(joins, owner, segment)

    # The loop ends: the owner of each claimed slot always joins.
    start = (jnp.uint32(0), jnp.full(rows, rows, jnp.int32))
    return lax.while_loop(lambda carry: jnp.any(member & (carry[1] == rows)), settle, start)[1]


def _mix_words(seed: Array, words: Sequence[Array]) -> Array:
    """Hashes words of 32 bits with the finaliser of MurmurHash3."""
    # Each step is invertible and spreads every bit.
    mixed = jnp.full(words[0].shape, 0x9E3779B9, jnp.uint32) * (seed + 1)
    for word in words:
        mixed ^= word
        mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
        mixed ^= mixed >> 16
    return mixed


def count_members(segment: Array, member: Array) -> Array:
    """Counts the members, [N] bool, of each row's segment, [N] i32."""
    total = jax.ops.segment_sum(member.astype(jnp.int32), segment, segment.shape[0])
    return total[segment]


def compare_values(
    values: Array,
    basis: Array,
    segment: Array,
    member: Array,
    *,
    normalize: str,
    ddof: int,
    eps: ArrayLike,
) -> Array:
    """Compares every value with the mean of its segment: `(v - mean) / F`, [N] f32.

    F is 1 for `normalize="mean"`, the standard deviation plus `eps` for `"mean_std"`. Values are
    measured from the segment's smallest one, so a segment of equal values gives exactly 0 and a
    common offset costs no digits; the mean is corrected by a second pass and the variance is taken
    of the centred values. A segment whose standard deviation is exactly 0 gives 0 under
    `"mean_std"`.

    Args:
      values: [N] f32, values to compare.
      basis: [N] f32, values of mean and standard deviation; mostly `values` itself.
      segment: [N] i32, segment of each row.
      member: [N] bool, rows of mean and standard deviation.
      normalize: "mean_std" or "mean".
      ddof: Number subtracted from the count of members in the variance, 0 or 1.
      eps: Number added to the standard deviation.
    """
    rows = segment.shape[0]

    def total(x: Array) -> Array:
        return jax.ops.segment_sum(jnp.where(member, x, 0.0), segment, rows)[segment]

    # At least 1: a segment without members must not divide by 0.
    size = jnp.maximum(count_members(segment, member), 1).astype(jnp.float32)
    lowest = jax.ops.segment_min(jnp.where(member, basis, jnp.inf), segment, rows)[segment]
    # A segment without members has no smallest value; inf - inf below would be NaN.
    lowest = jnp.where(jnp.isfinite(lowest), lowest, 0.0)
    centred = basis - lowest
    mean = total(centred) / size
    # The float32 sum behind the mean is rounded. The mean of the remainders is that error.
    correction = total(centred - mean) / size
    centred = centred - mean - correction
    # The same operations in the same order as for `basis`: equal inputs give bit-equal results.
    difference = values - lowest - mean - correction
    if normalize == "mean":
        return difference
    deviation = jnp.sqrt(total(centred * centred) / jnp.maximum(size - ddof, 1.0))
    # With deviation 0 only `values` that are not `basis` differ from the mean. Divided by eps
    # alone, a penalty of 0.1 would become an advantage of 100,000.
    return jnp.where(deviation > 0.0, difference / (deviation + eps), 0.0)


def suffix_sums(
    reward: Array, step: Array, trajectory: Array, gamma: ArrayLike
) -> tuple[Array, Array]:
    """Sums each row's reward and its trajectory's later rewards.

    The window that a row has summed doubles every round until the longest trajectory is covered, so
    the additions of a row depend on its distance to the rows ahead and on nothing else. Equal
    futures therefore give bit-equal returns wherever they stand in the batch, which a block-wise
    scan does not. The plain sum carries its rounding error along (error-free two-sum), because
    penalties of 0.1 in a different order must not tell two equal returns apart.

    Args:
      reward: [N] f32, ordered by trajectory and step.
      step: [N] i32, step index; gaps are discounted by their width.
      trajectory: [N] i32, contiguous segments.
      gamma: Discount factor from step to step.

    Returns:
      [N] f32, sum over k >= t of gamma^(k - t) r_k; [N] f32, sum over k >= t of r_k.
    """
    rows = reward.shape[0]
    index = jnp.arange(rows, dtype=jnp.int32)
    last = jax.ops.segment_max(index, trajectory, rows)[trajectory]
    # Masked rows are in no trajectory: 0 rows ahead, so nothing is added to them.
    rows_ahead = jnp.where(trajectory < rows, last - index, 0)

    def shift_back(x: Array, shift: Array) -> Array:
        # Zeros behind the rows: a slice that reached past the end would be moved back to fit.
        return lax.dynamic_slice(jnp.concatenate([x, jnp.zeros_like(x)]), (shift,), (rows,))

    def double(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        # `weight` discounts over `shift` rows; past the end of a trajectory it means nothing and is
        # not used.
        shift, weight, discounted, high, low = carry
        inside = rows_ahead >= shift
        # `where`, not a product with `inside`: the weight may be infinite there.
        discounted = discounted + jnp.where(inside, weight * shift_back(discounted, shift), 0.0)
        # Two-sum (Knuth): `error` is exactly what the rounding of `total` lost.
        addend = jnp.where(inside, shift_back(high, shift), 0.0)
        total = high + addend
        virtual = total - high
        error = (high - (total - virtual)) + (addend - virtual)
        low = low + jnp.where(inside, shift_back(low, shift), 0.0) + error
        return shift * 2, weight * shift_back(weight, shift), discounted, total, low

    # At the border of two trajectories the width can be negative and its power infinite.
    # `inside` is False there.
    width = (jnp.roll(step, -1) - step).astype(jnp.float32)
    weight = jnp.power(jnp.float32(gamma), width)
    start: tuple[Array, ...] = (jnp.int32(1), weight, reward, reward, jnp.zeros_like(reward))
    # The rounds are counted at run time, log2 of the longest trajectory: no length compiles anew.
    longest = jnp.max(rows_ahead)
    _, _, discounted, high, low = lax.while_loop(lambda carry: carry[0] <= longest, double, start)
    return discounted, high + low
