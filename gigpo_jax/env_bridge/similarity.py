"""Similarity grouping of anchor states: states of a task group with nearly the same text count as the same state.

Within a task group and in row order, a state joins the first cluster whose first member it resembles,
`difflib.SequenceMatcher(None, state, first).ratio() >= threshold`, or else starts one. The clusters found here are
exactly these, but the ratio is rarely computed. Its numerator 2 M counts the characters M of difflib's matching blocks,
which are a common subsequence. So texts a and b are distinguished

1. by their lengths: M <= min(|a|, |b|);
2. by their character q-grams: with U = |a| + |b| - 2 M characters unmatched there are at most U + 1 blocks, and a block
   of k characters holds k - q + 1 q-grams that both texts have; hence common q-grams >= M - (q - 1) (U + 1). Counting
   q-grams in hash buckets can only find more in common;
3. by difflib's search for blocks, stopped as soon as the blocks found suffice or the rest cannot; all runs of matching
   characters of a pair are found at once by a sort, a block is then the best run inside its ranges.

Groups are independent and run in worker processes. Nothing here imports jax.
"""

import heapq
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gigpo_jax.env_bridge.fresh import FreshProcess
from gigpo_jax.env_bridge.types import anchor_hash

AUTOJUNK_LENGTH = 200  # from here on difflib does not look for characters that make up over 1% of the second text
GRAM = 3  # q; of 2, 3 and 4 the one that distinguishes most passages of English


def least_match(total: int, threshold: float) -> int:
    """The smallest M with `2.0 * M / total >= threshold`, in the floating-point arithmetic of `ratio()`.

    `total` > 0 are the characters of both texts, `threshold` is in [0, 1].
    """
    guess = max(math.floor(threshold * total / 2) - 1, 0)
    while 2.0 * guess / total < threshold:
        guess += 1
    return guess


def gram_counts(codes: np.ndarray, bits: int) -> np.ndarray:
    """Counts the q-grams of code points [n] u32 in hash buckets: [2 ** bits] u16; a bucket holds 65535 at most."""
    grams = max(len(codes) - GRAM + 1, 0)
    rolled = np.zeros(grams, np.uint32)
    for place in range(GRAM):
        rolled = rolled * np.uint32(0x01000193) + codes[place : place + grams]
    buckets = (rolled * np.uint32(0x9E3779B1)) >> np.uint32(32 - bits)
    return np.minimum(np.bincount(buckets, minlength=1 << bits), 65535).astype(np.uint16)


class Text:
    """A state with what comparisons need.

    Attributes:
      codes: [n] u32, its code points.
      grams: [2 ** bits] u16, as from `gram_counts`.
      letters: distinct code points, ascending.
      letter: [n], the place of each code point in `letters`.
    """

    def __init__(self, text: str, bits: int) -> None:
        self.text = text
        self.codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        self.grams = gram_counts(self.codes, bits)
        self.letters, self.letter = np.unique(self.codes, return_inverse=True)


class Head(Text):
    """The first member of a cluster.

    Attributes:
      row: its index among the states.
      places: where it has the characters that difflib looks for (in long texts the frequent ones do not count), by
        character and then ascending.
      place_codes: the code points at `places`, ascending.
    """

    def __init__(self, text: str, bits: int, row: int) -> None:
        super().__init__(text, bits)
        self.row = row
        count = np.bincount(self.letter, minlength=len(self.letters))
        length = len(self.codes)
        rare = count <= length // 100 + 1 if length >= AUTOJUNK_LENGTH else count > 0
        by_letter = np.argsort(self.letter, kind="stable")
        self.places = by_letter[rare[self.letter[by_letter]]]
        self.place_codes = self.codes[self.places]


class Blocks:
    """difflib's matching blocks of a state (first sequence) and a head (second).

    Attributes:
      run_a: start of each maximal diagonal run of matching characters in the state.
      run_b: its start in the head.
      run_length: its length; characters that difflib does not look for are in no run.
    """

    def __init__(self, state: Text, head: Head) -> None:
        self.a, self.b = state.codes, head.codes
        low = np.searchsorted(head.place_codes, state.letters, "left")
        count = np.searchsorted(head.place_codes, state.letters, "right") - low
        count = count[state.letter]
        places = np.flatnonzero(count)  # few: most characters of a long text are frequent
        count, low = count[places], low[state.letter[places]]
        in_a = np.repeat(places, count)
        # Each of these places meets a stretch of `head.places`.
        in_b = head.places[np.arange(len(in_a)) + np.repeat(low - (np.cumsum(count) - count), count)]
        # Sorted by diagonal and then by place, the characters of a run are neighbours.
        stride, shift = len(self.a) + 1, len(self.b)
        keys = np.sort((in_a - in_b + shift) * stride + in_a)
        breaks = np.flatnonzero(keys[1:] - keys[:-1] != 1) + 1
        start = np.concatenate([np.zeros(min(len(keys), 1), np.int64), breaks])
        self.run_length = np.concatenate([breaks, [len(keys)]])[: len(start)] - start
        diagonal, self.run_a = np.divmod(keys[start], stride)
        self.run_b = self.run_a - (diagonal - shift)

    def longest(self, a_low: int, a_high: int, b_low: int, b_high: int) -> tuple[int, int, int]:
        """What `SequenceMatcher.find_longest_match` finds in these ranges: start in a, start in b, length.

        That is the longest run in the ranges, the first in a and then in b of several, grown at both ends over equal
        characters of any kind.
        """
        skip = np.maximum(np.maximum(a_low - self.run_a, b_low - self.run_b), 0)
        length = np.minimum(np.minimum(a_high - self.run_a, b_high - self.run_b), self.run_length) - skip
        size = max(int(length.max(initial=0)), 0)
        a, b = a_low, b_low
        if size:
            best = np.flatnonzero(length == size)
            starts = self.run_a[best] + skip[best]
            a = int(starts.min())
            b = int((self.run_b[best] + skip[best])[starts == a].min())
        room = min(a - a_low, b - b_low)
        before = _common(self.a[a - room : a][::-1], self.b[b - room : b][::-1])
        room = min(a_high - a, b_high - b) - size
        after = _common(self.a[a + size : a + size + room], self.b[b + size : b + size + room])
        return a - before, b - before, before + size + after

    def hold(self, need: int) -> bool:
        """Whether the matching blocks hold at least `need` characters.

        The blocks are those of `get_matching_blocks`: the longest match of two ranges, then those left and right of
        it. Their order does not matter here, so the ranges that may hold most come first.
        """
        matched, possible = 0, min(len(self.a), len(self.b))
        ranges = [(-possible, 0, len(self.a), 0, len(self.b))]
        while ranges and matched < need <= possible:
            size, a_low, a_high, b_low, b_high = heapq.heappop(ranges)
            possible += size
            a, b, block = self.longest(a_low, a_high, b_low, b_high)
            if not block:
                continue
            matched, possible = matched + block, possible + block
            for part in ((a_low, a, b_low, b), (a + block, a_high, b + block, b_high)):
                size = min(part[1] - part[0], part[3] - part[2])
                if size:
                    possible += size
                    heapq.heappush(ranges, (-size, *part))
        return matched >= need


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the common prefix of two arrays of equal length."""
    differs = first != second
    place = int(differs.argmax()) if len(differs) else 0
    return place if len(differs) and differs[place] else len(differs)


def cluster(states: Sequence[str], threshold: float) -> list[int]:
    """Clusters the states of one task group, in row order: for each state the index of its cluster's first member."""
    bits = min(max((4 * max(map(len, states), default=1)).bit_length(), 6), 16)
    seen: dict[str, int] = {}
    heads: list[Head] = []
    for row, state in enumerate(states):
        if state not in seen:
            text = Text(state, bits)
            head = next((h for h in heads if resembles(text, h, threshold)), None)
            if head is None:
                head = Head(state, bits, row)
                heads.append(head)
            # Equal texts meet the same first members in the same order, and a text resembles itself.
            seen[state] = head.row
    return [seen[state] for state in states]


def resembles(state: Text, head: Head, threshold: float) -> bool:
    """Whether `SequenceMatcher(None, state, head).ratio() >= threshold`."""
    lengths = len(state.text), len(head.text)
    total = sum(lengths)
    if total == 0:
        return True  # difflib: nothing resembles nothing
    need = least_match(total, threshold)
    if min(lengths) < need:
        return False
    common = need - (GRAM - 1) * (total - 2 * need + 1)
    # A full bucket may hide grams: texts that long are not told apart here.
    if common > 0 and total < 65535 and int(np.minimum(state.grams, head.grams).sum(dtype=np.int64)) < common:
        return False
    return Blocks(state, head).hold(need)


def cluster_groups(
    groups: Sequence[Sequence[str]], *, threshold: float = 0.9, workers: int = 2, timeout_s: float = 600.0
) -> list[list[int]]:
    """Clusters each group as `cluster` does, in worker processes.

    Args:
      groups: the states of each task group in row order.
      threshold: of `SequenceMatcher.ratio`, in [0, 1].
      workers: processes; 0 computes here.
      timeout_s: limit of the whole call, s.

    Raises:
      TimeoutError: the workers exceeded the limit.
      RuntimeError: a worker failed.
    """
    workers = min(workers, len(groups))
    if workers < 1:
        return [cluster(states, threshold) for states in groups]
    # Comparisons grow with the square of the number of states: deal the big groups first.
    by_size = sorted(range(len(groups)), key=lambda g: -len(groups[g]) * sum(map(len, groups[g])))
    shares = [by_size[w::workers] for w in range(workers)]
    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(workers) as threads:
        answers = threads.map(
            lambda share: _ask_worker([list(groups[g]) for g in share], threshold, deadline, timeout_s), shares
        )
        found: list[list[int]] = [[] for _ in groups]
        for share, answer in zip(shares, answers, strict=True):
            for group, heads in zip(share, answer, strict=True):
                found[group] = heads
    return found


def similar_anchors(
    states: Sequence[str],
    group: Sequence[int] | np.ndarray,
    *,
    threshold: float = 0.9,
    workers: int = 2,
) -> np.ndarray:
    """Hashes each state as the first member of its cluster: the `anchor` lanes [N, 2] u32 of `gigpo_advantages`.

    Args:
      states: N anchor states in row order; leave masked rows out.
      group: [N] the task group of each.
      threshold, workers: as for `cluster_groups`.
    """
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(np.asarray(group).tolist()):
        rows.setdefault(number, []).append(row)
    texts = [[states[row] for row in members] for members in rows.values()]
    found = cluster_groups(texts, threshold=threshold, workers=workers)
    lanes = np.zeros((len(states), 2), np.uint32)
    for members, heads in zip(rows.values(), found, strict=True):
        hashes = {head: anchor_hash(states[members[head]]) for head in set(heads)}
        lanes[members] = [hashes[head] for head in heads]
    return lanes


def serve_worker() -> None:
    """The other side of a worker process: one request on standard input, one answer on standard output."""
    groups, threshold = pickle.load(sys.stdin.buffer)
    pickle.dump([cluster(states, threshold) for states in groups], sys.stdout.buffer)


def _ask_worker(groups: list[list[str]], threshold: float, deadline: float, timeout_s: float) -> list[list[int]]:
    pipe = subprocess.PIPE
    process = FreshProcess("gigpo_jax.env_bridge.similarity:serve_worker", stdin=pipe, stdout=pipe, stderr=pipe)
    with process.popen as popen:
        try:
            left = max(deadline - time.monotonic(), 0.0)
            answer, errors = popen.communicate(pickle.dumps((groups, threshold)), timeout=left)
        except subprocess.TimeoutExpired as err:
            raise TimeoutError(
                f"similarity grouping took over {timeout_s} s; use shorter anchor states or rl.anchor_match=exact"
            ) from err
        finally:
            process.end()
    if popen.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"a worker of similarity grouping ended with status {popen.returncode}: {reason}")
    result: list[list[int]] = pickle.loads(answer)
    return result
