"""Similarity grouping of anchor states: states with nearly the same text count as one state.

Within a task group and in row order, a state joins the first cluster whose first member it
resembles, `difflib.SequenceMatcher(None, state, first).ratio() >= threshold`, or else starts one.
The clusters are exactly these; difflib itself would take minutes for 256 groups of 20 states of
2,000 characters (benchmarks/similarity.py). The ratio is 2 M / (|a| + |b|) with M the characters of
difflib's matching blocks. The search for blocks ends as soon as they suffice or cannot any more,
and all runs of matching characters of a pair come from one sort.

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

from gigpo_jax.env_bridge.processes.fresh import FreshProcess
from gigpo_jax.env_bridge.types import anchor_hash

# In a second text of this length or more, difflib does not look for characters that make up over 1%
# of it ("autojunk").
AUTOJUNK_LENGTH = 200


def least_match(total: int, threshold: float) -> int:
    """The smallest number of matches that reaches the threshold.

    M with `2.0 * M / total >= threshold`, in the arithmetic of `ratio()`.

    Args:
      total: characters of both texts, above 0.
      threshold: number in [0, 1].
    """
    # Below the exact number, then upwards with the division of `ratio()`: its rounding decides.
    match = max(math.floor(threshold * total / 2) - 1, 0)
    while 2.0 * match / total < threshold:
        match += 1
    return match


class ComparedText:
    """A state, prepared for comparisons.

    Attributes:
      codes: [n] u32, its code points.
      letters: distinct code points, ascending.
      letter: [n], index of each code point in `letters`.
    """

    def __init__(self, text: str) -> None:
        # Code points, as difflib compares characters. A text may hold lone surrogates.
        self.codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        self.letters, self.letter = np.unique(self.codes, return_inverse=True)


class Head(ComparedText):
    """The first member of a cluster.

    Attributes:
      row: index of the state in its group.
      places: places of the characters that difflib looks for, by character, then ascending.
      place_codes: code points at `places`, ascending.
    """

    def __init__(self, text: str, row: int) -> None:
        super().__init__(text)
        self.row = row
        places = np.argsort(self.letter, kind="stable")
        length = len(self.codes)
        if length >= AUTOJUNK_LENGTH:
            counts = np.bincount(self.letter, minlength=len(self.letters))
            # The limit of difflib: a more frequent character begins no match.
            is_rare = counts <= length // 100 + 1
            places = places[is_rare[self.letter[places]]]
        self.places = places
        self.place_codes = self.codes[places]


class Blocks:
    """The matching blocks of difflib for state and head.

    The state is the first sequence, the head the second.

    Attributes:
      run_a: start of each maximal diagonal run of matching characters in the state.
      run_b: start of that run in the head.
      run_length: length of that run; characters that difflib does not look for are in no run.
    """

    def __init__(self, state: ComparedText, head: Head) -> None:
        # Stages: pairs of equal characters; their diagonals; the maximal runs on each diagonal.
        self.a = state.codes
        self.b = head.codes
        # For each character of the state the stretch of `head.places` with the same character.
        first = np.searchsorted(head.place_codes, state.letters, "left")
        counts = np.searchsorted(head.place_codes, state.letters, "right") - first
        counts = counts[state.letter]
        matched = np.flatnonzero(counts)  # few: most characters of a long text are frequent
        counts = counts[matched]
        first = first[state.letter[matched]]
        # All pairs of equal characters: each matched character beside its whole stretch.
        in_a = np.repeat(matched, counts)
        offset = np.repeat(first - (np.cumsum(counts) - counts), counts)
        in_b = head.places[np.arange(len(in_a)) + offset]
        # Sorted by diagonal and then by place, the characters of a run are neighbours.
        # One more than the places in a: the last key of a diagonal and the first of the next are
        # not neighbours, so no run goes over the border.
        stride = len(self.a) + 1
        shift = len(self.b)
        keys = np.sort((in_a - in_b + shift) * stride + in_a)
        breaks = np.flatnonzero(keys[1:] - keys[:-1] != 1) + 1
        starts = np.concatenate([np.zeros(min(len(keys), 1), np.int64), breaks])
        ends = np.concatenate([breaks, [len(keys)]])[: len(starts)]
        self.run_length = ends - starts
        diagonal, self.run_a = np.divmod(keys[starts], stride)
        self.run_b = self.run_a - (diagonal - shift)

    def longest(self, a_low: int, a_high: int, b_low: int, b_high: int) -> tuple[int, int, int]:
        """The result of `SequenceMatcher.find_longest_match`.

        Start in a, start in b, length. That is the longest run in the ranges, the first in a and
        then in b of several, grown at both ends over equal characters of any kind.
        """
        # A run that begins before the ranges counts from where it enters both.
        skip = np.maximum(np.maximum(a_low - self.run_a, b_low - self.run_b), 0)
        room = np.minimum(a_high - self.run_a, b_high - self.run_b)
        lengths = np.minimum(room, self.run_length) - skip
        size = max(int(lengths.max(initial=0)), 0)
        a = a_low
        b = b_low
        if size:
            runs = np.flatnonzero(lengths == size)
            a_starts = self.run_a[runs] + skip[runs]
            b_starts = self.run_b[runs] + skip[runs]
            a = int(a_starts.min())
            b = int(b_starts[a_starts == a].min())
        # difflib extends a match over characters that begin none.
        room_before = min(a - a_low, b - b_low)
        grown_before = common_prefix(
            self.a[a - room_before : a][::-1], self.b[b - room_before : b][::-1]
        )
        a_end = a + size
        b_end = b + size
        room_behind = min(a_high - a_end, b_high - b_end)
        grown_behind = common_prefix(
            self.a[a_end : a_end + room_behind], self.b[b_end : b_end + room_behind]
        )
        length = grown_before + size + grown_behind
        return a - grown_before, b - grown_before, length

    def reach(self, need: int) -> bool:
        """Whether the matching blocks have at least `need` characters.

        The blocks are those of `get_matching_blocks`: the longest match of two ranges, then those
        left and right of it. Their order does not matter here, so the ranges with the most room
        come first.
        """
        matched = 0
        possible = min(len(self.a), len(self.b))  # upper bound of the characters of all blocks
        ranges = [(-possible, 0, len(self.a), 0, len(self.b))]
        # The loop ends as soon as the answer is certain, in either direction.
        while ranges and matched < need <= possible:
            room, a_low, a_high, b_low, b_high = heapq.heappop(ranges)
            possible += room  # `room` is negative
            a, b, size = self.longest(a_low, a_high, b_low, b_high)
            if not size:
                continue
            matched += size
            possible += size
            for side in ((a_low, a, b_low, b), (a + size, a_high, b + size, b_high)):
                room = min(side[1] - side[0], side[3] - side[2])
                if room:
                    possible += room
                    heapq.heappush(ranges, (-room, *side))
        return matched >= need


def common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the common prefix of two equally long arrays."""
    differences = np.flatnonzero(first != second)
    return int(differences[0]) if len(differences) else len(first)


def resembles(state: ComparedText, head: Head, threshold: float) -> bool:
    """Whether `SequenceMatcher(None, state, head).ratio() >= threshold`."""
    lengths = (len(state.codes), len(head.codes))
    if sum(lengths) == 0:
        return True  # the ratio of two empty texts is 1
    need = least_match(sum(lengths), threshold)
    # The cheap test first: a text cannot have more matches than characters.
    return min(lengths) >= need and Blocks(state, head).reach(need)


def cluster(states: Sequence[str], threshold: float) -> list[int]:
    """Clusters the states of one task group.

    Gives for each the index of its cluster's first member.
    """
    # Equal texts meet the same first members in the same order, and a text resembles itself.
    clusters: dict[str, int] = {}
    heads: list[Head] = []
    for row, state in enumerate(states):
        if state in clusters:
            continue
        text = ComparedText(state)
        for head in heads:
            if resembles(text, head, threshold):
                clusters[state] = head.row
                break
        else:
            clusters[state] = row
            heads.append(Head(state, row))
    return [clusters[state] for state in states]


def cluster_groups(
    groups: Sequence[Sequence[str]],
    *,
    threshold: float = 0.9,
    workers: int = 2,
    timeout_s: float = 600.0,
) -> list[list[int]]:
    """Clusters each group as `cluster` does, in worker processes.

    Args:
      groups: states of each task group in row order.
      threshold: lowest `SequenceMatcher.ratio` of states that resemble, in [0, 1].
      workers: number of processes; 0 computes here.
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
    # Each worker gets big and small groups, so all take about the same time.
    shares = [by_size[worker::workers] for worker in range(workers)]
    deadline = time.monotonic() + timeout_s

    def cluster_share(share: Sequence[int]) -> list[list[int]]:
        states = [list(groups[group]) for group in share]
        return _ask_worker(states, threshold, deadline, timeout_s)

    clusters: list[list[int]] = [[] for _ in groups]
    # A thread for each process, which does nothing but wait for the answer.
    with ThreadPoolExecutor(workers) as threads:
        for share, answer in zip(shares, threads.map(cluster_share, shares), strict=True):
            for group, heads in zip(share, answer, strict=True):
                clusters[group] = heads
    return clusters


def similar_anchors(
    states: Sequence[str],
    group: Sequence[int] | np.ndarray,
    *,
    threshold: float = 0.9,
    workers: int = 2,
) -> np.ndarray:
    """Hashes each state as the first member of its cluster.

    The result is lanes [N, 2] u32 of `anchor`.

    Args:
      states: N anchor states in row order, without masked rows.
      group: task group of each state, [N].
      threshold: threshold of `cluster_groups`.
      workers: number of processes of `cluster_groups`.
    """
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(np.asarray(group).tolist()):
        rows.setdefault(number, []).append(row)
    texts = [[states[row] for row in members] for members in rows.values()]
    clusters = cluster_groups(texts, threshold=threshold, workers=workers)
    lanes = np.zeros((len(states), 2), np.uint32)
    for members, heads in zip(rows.values(), clusters, strict=True):
        hashes = {head: anchor_hash(states[members[head]]) for head in set(heads)}
        lanes[members] = [hashes[head] for head in heads]
    return lanes


def serve_worker() -> None:
    """Answers one request from standard input on standard output."""
    groups, threshold = pickle.load(sys.stdin.buffer)
    pickle.dump([cluster(states, threshold) for states in groups], sys.stdout.buffer)


def _ask_worker(
    groups: list[list[str]], threshold: float, deadline: float, timeout_s: float
) -> list[list[int]]:
    pipe = subprocess.PIPE
    process = FreshProcess(
        "gigpo_jax.learner.similarity:serve_worker", stdin=pipe, stdout=pipe, stderr=pipe
    )
    with process.popen as popen:
        try:
            remaining = max(deadline - time.monotonic(), 0.0)
            request = pickle.dumps((groups, threshold))
            # Both pipes are read at once: a worker with a full pipe of errors would wait for ever.
            answer, errors = popen.communicate(request, timeout=remaining)
        except subprocess.TimeoutExpired as err:
            raise TimeoutError(
                f"similarity grouping took over {timeout_s} s; "
                "use shorter anchor states or rl.anchor_match=exact"
            ) from err
        finally:
            # Also after the time limit or Ctrl-C: no worker outlives the call.
            process.end()
    if popen.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(
            f"a worker of similarity grouping ended with status {popen.returncode}: {reason}"
        )
    result: list[list[int]] = pickle.loads(answer)
    return result
