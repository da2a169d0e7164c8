import subprocess
import sys
from difflib import SequenceMatcher

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.env_bridge.types import anchor_hash
from gigpo_jax.learner.similarity import (
    blocks_reach,
    cluster,
    cluster_groups,
    least_match,
    similar_anchors,
)


def greedy(states: list[str], threshold: float) -> list[int]:
    """The definition."""
    heads: list[int] = []
    clusters = []
    for index, state in enumerate(states):
        for head in heads:
            if SequenceMatcher(None, state, states[head]).ratio() >= threshold:
                clusters.append(head)
                break
        else:
            heads.append(index)
            clusters.append(index)
    return clusters


def edited(text: str, rng: np.random.Generator, edits: int, alphabet: str) -> str:
    for _ in range(edits):
        start = int(rng.integers(len(text) + 1))
        width = int(rng.integers(6))
        piece = "".join(rng.choice(list(alphabet), int(rng.integers(6))))
        text = text[:start] + piece + text[start + width :]
    return text


def passages(seed: int, count: int, length: int, edits: int) -> list[str]:
    """Texts over a few or many letters: new ones, edited copies, moved pieces and copies.

    With a hundred letters many make up about 1% of a text, where difflib draws its line.
    """
    rng = np.random.default_rng(seed)
    alphabet = (
        "ab",
        "etaoin shrdlu.xz",
        "".join(map(chr, range(32, 132))),
        "".join(map(chr, range(32, 2000))),
    )[seed % 4]
    states: list[str] = []
    for _ in range(count):
        kind = rng.integers(4) if states else 0
        old = states[int(rng.integers(len(states)))] if states else ""
        if kind == 0:
            states.append(
                "".join(rng.choice(list(alphabet), int(rng.integers(length // 2, length + 1))))
            )
        elif kind == 1:
            states.append(edited(old, rng, int(rng.integers(edits + 1)), alphabet))
        elif kind == 2:
            cut = int(rng.integers(len(old) + 1))
            states.append(old[cut:] + old[:cut])
        else:
            states.append(old)
    return states


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([12, 60, 260, 700]),
    st.sampled_from([0.5, 0.8, 0.9, 0.97]),
)
def test_clusters_equal_the_greedy_definition(seed, length, threshold):
    """Lengths on both sides of 200, where difflib starts to ignore popular characters."""
    states = passages(seed, 9, length, edits=max(length // 25, 2))
    assert cluster(states, threshold) == greedy(states, threshold)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("abc", max_size=9), max_size=8),
    st.sampled_from([0.0, 0.3, 0.6, 0.75, 0.9, 1.0]),
)
def test_short_texts_and_all_thresholds(states, threshold):
    assert cluster(states, threshold) == greedy(states, threshold)


@given(st.integers(1, 5000), st.floats(0.0, 1.0))
def test_least_match_is_where_the_ratio_reaches_the_threshold(total, threshold):
    need = least_match(total, threshold)
    assert 2.0 * need / total >= threshold
    assert need == 0 or 2.0 * (need - 1) / total < threshold


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([8, 150, 260, 900]))
def test_blocks_reach_what_the_blocks_of_difflib_have(seed, length):
    first, second = passages(seed, 2, length, edits=8)
    matcher = SequenceMatcher(None, second, first)
    size = sum(block.size for block in matcher.get_matching_blocks())
    lengths = (len(second), len(first))
    assert blocks_reach(matcher, lengths, size)
    assert not blocks_reach(matcher, lengths, size + 1)


def test_numbers_by_hand():
    # "abcd" and "bcde": 2 * 3 / 8 = 0.75.
    assert cluster(["abcd", "bcde", "abcd", "xyz", ""], 0.75) == [0, 0, 0, 3, 4]
    assert cluster(["abcd", "bcde", "abcd", "xyz", ""], 0.76) == [0, 1, 0, 3, 4]
    # Greedy and in row order: the third resembles the first two, and joins the first.
    assert cluster(["aaaabb", "bbaaaa", "aaaa"], 0.8) == [0, 1, 0]
    assert cluster(["aaaa", "aaaabb", "bbaaaa"], 0.8) == [0, 0, 0]
    assert cluster([], 0.9) == []
    assert cluster(["\ud800x", "\ud800x"], 0.9) == [0, 0]


def test_worker_processes_give_what_one_process_gives():
    groups = [passages(seed, 6, 200, 5) for seed in range(7)] + [[], ["\ud800\udc00 lone"]]
    alone = cluster_groups(groups, workers=0)
    assert cluster_groups(groups, workers=2) == alone == [greedy(states, 0.9) for states in groups]


def test_anchors_are_hashes_of_first_members_within_the_group():
    states = ["the red box is open", "the red box is open.", "nothing", "the red box is open!"]
    lanes = similar_anchors(states, [4, 4, 4, -1], workers=0)
    want = [
        anchor_hash(states[0]),
        anchor_hash(states[0]),
        anchor_hash("nothing"),
        anchor_hash(states[3]),
    ]
    np.testing.assert_array_equal(lanes, np.asarray(want, np.uint32))


def test_a_worker_that_is_too_slow_or_fails_is_reported():
    with pytest.raises(TimeoutError, match=r"took over 0\.05 s"):
        cluster_groups([["a"], ["b"]], workers=2, timeout_s=0.05)
    with pytest.raises(
        RuntimeError, match="ended with status 1: TypeError: unhashable type: 'list'"
    ):
        cluster_groups([[["a"]]], workers=1)


def test_the_module_does_not_import_jax():
    code = "import sys, gigpo_jax.learner.similarity; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
