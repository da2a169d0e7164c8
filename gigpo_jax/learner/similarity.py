"""Similarity grouping of anchor states: states with nearly the same text count as one state.

Within a task group and in row order, a state joins the first cluster whose first member it
resembles, `difflib.SequenceMatcher(None, state, first).ratio() >= threshold`, or else starts one.
The ratio is 2 M / (|a| + |b|) with M the characters of difflib's matching blocks. The clusters are
exactly these, in 20 to 40% of the CPU time (benchmarks/similarity.py): the search for blocks ends
as soon as they suffice or cannot any more. Matches found with sorted arrays of numpy took 5%, in
130 more lines: the 2 s that 16 cores would save in an iteration of configs/search.py are not worth
them.

Groups are independent and run in worker processes. Nothing here imports jax.
"""

import heapq
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import SequenceMatcher

import numpy as np

from gigpo_jax.env_bridge.processes.fresh import FreshProcess
from gigpo_jax.env_bridge.types import anchor_hash

WORTH_WORKERS = 512  # states; fewer are grouped faster than worker processes start


def least_match(total: int, threshold: float) -> int:
    """Returns the smallest number of matches M with `2.0 * M / total >= threshold`.

    It is computed in the arithmetic of `ratio()`, whose rounding decides.

    Args:
      total: characters of both texts, above 0.
      threshold: number in [0, 1].
    """
    # Below the exact number, then upwards with the division of `ratio()`: its rounding decides.
    match = max(math.floor(threshold * total / 2) - 1, 0)
    while 2.0 * match / total < threshold:
        match += 1
    return match


def blocks_reach(matcher: SequenceMatcher[str], lengths: tuple[int, int], need: int) -> bool:
    """Whether the matching blocks have at least `need` characters.

    The blocks are as from `get_matching_blocks`: the longest match of two ranges, then the longest
    matches left and right of it. Their order does not matter here, so the ranges with the most room
    come first.

    Args:
      matcher: matcher of two texts.
      lengths: characters of the first text and of the second one.
      need: number of characters to reach.
    """
    matched = 0
    possible = min(lengths)  # upper bound of the characters of all blocks
    ranges = [(-possible, 0, lengths[0], 0, lengths[1])]
    # The loop ends as soon as the answer is certain, in either direction.
    while ranges and matched < need <= possible:
        room, a_low, a_high, b_low, b_high = heapq.heappop(ranges)
        possible += room  # `room` is negative
        a, b, size = matcher.find_longest_match(a_low, a_high, b_low, b_high)
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


def resembles(matcher: SequenceMatcher[str], lengths: tuple[int, int], threshold: float) -> bool:
    """Whether `matcher.ratio() >= threshold`."""
    total = sum(lengths)
    # The ratio of two empty texts is 1.
    return total == 0 or blocks_reach(matcher, lengths, least_match(total, threshold))


def cluster(states: Sequence[str], threshold: float) -> list[int]:
    """Clusters the states of one task group; each gets the index of its cluster's first member."""
    # Equal texts meet the same first members in the same order, and a text resembles itself.
    clusters: dict[str, int] = {}
    # By row: a matcher keeps the places of characters in its second text, the first member.
    heads: dict[int, SequenceMatcher[str]] = {}
    for row, state in enumerate(states):
        if state in clusters:
            continue
        for head, matcher in heads.items():
            matcher.set_seq1(state)
            if resembles(matcher, (len(state), len(states[head])), threshold):
                clusters[state] = head
                break
        else:
            clusters[state] = row
            heads[row] = SequenceMatcher(None, "", state)
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
    workers: int | None = None,
) -> np.ndarray:
    """Hashes each state as the first member of its cluster, in lanes [N, 2] u32 of `anchor`.

    Args:
      states: N anchor states in row order, without masked rows.
      group: task group of each state, [N].
      threshold: threshold of `cluster_groups`.
      workers: number of processes of `cluster_groups`; None: as many as are worth their start.
    """
    if workers is None:
        workers = min(os.cpu_count() or 1, 16) if len(states) >= WORTH_WORKERS else 0
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
