"""Similarity grouping of 64 groups of 20 states of 2,000 characters, against its definition.

    python benchmarks/similarity.py [--workers 2]

Writes benchmarks/results/similarity.json. Three kinds of groups: "search" (a question and three of
twelve passages: copies, other orders, other passages), "different" (no two states alike) and
"edited" (copies of two texts with up to 6% of their words replaced, so that many pairs lie near the
threshold). The definition is timed on a few groups of each and must give the same clusters there.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from gigpo_jax.learner.similarity import cluster_groups

GROUPS = 64
STATES = 20
LENGTH = 2000
THRESHOLD = 0.9
CHECKED = 2  # groups of each kind that the definition is timed on


def make_words(rng: np.random.Generator, count: int) -> list[str]:
    """Words of an invented language with the letter frequencies of English."""
    letters = list("etaoinshrdlucmfwypvbgkjqxz")
    frequency = 1.0 / (np.arange(len(letters)) + 2.5)
    frequency /= frequency.sum()
    return [
        "".join(rng.choice(letters, int(rng.integers(2, 10)), p=frequency)) for _ in range(count)
    ]


def passage(rng: np.random.Generator, words: list[str], length: int) -> str:
    """Text of `length` characters: sentences of words, the frequent ones first in the list."""
    # Zipf and Mandelbrot: the most frequent word is every twentieth, as in English.
    frequency = 1.0 / (np.arange(len(words)) + 2.7)
    ranks = rng.choice(len(words), length // 2, p=frequency / frequency.sum())
    sentences = []
    start = 0
    while start < len(ranks):
        stop = start + int(rng.integers(6, 18))
        sentences.append(" ".join(words[rank] for rank in ranks[start:stop]).capitalize() + ".")
        start = stop
    return " ".join(sentences)[:length]


def edit(rng: np.random.Generator, text: str, words: list[str], share: float) -> str:
    """Replaces a share of a text's words."""
    edited = []
    for word in text.split(" "):
        if rng.random() < share:
            word = words[int(rng.integers(len(words)))]
        edited.append(word)
    return " ".join(edited)[:LENGTH].ljust(LENGTH, ".")


def search_group(rng: np.random.Generator, words: list[str]) -> list[str]:
    """A question and three of twelve passages, the popular ones first."""
    question = passage(rng, words, 120)
    passages = [passage(rng, words, 620) for _ in range(12)]
    popularity = 1.0 / np.arange(1, 13)
    popularity /= popularity.sum()
    states = []
    for _ in range(STATES):
        results = [passages[p] for p in rng.choice(12, 3, replace=False, p=popularity)]
        states.append("\n".join([question, *results])[:LENGTH].ljust(LENGTH, "."))
    return states


def different_group(rng: np.random.Generator, words: list[str]) -> list[str]:
    """Twenty texts that only share words."""
    return [passage(rng, words, LENGTH) for _ in range(STATES)]


def edited_group(rng: np.random.Generator, words: list[str]) -> list[str]:
    """Copies of two texts with up to 6% of the words replaced."""
    texts = [passage(rng, words, LENGTH) for _ in range(2)]
    return [
        edit(rng, texts[int(rng.integers(2))], words, rng.uniform(0.0, 0.06)) for _ in range(STATES)
    ]


KINDS: dict[str, Callable[[np.random.Generator, list[str]], list[str]]] = {
    "search": search_group,
    "different": different_group,
    "edited": edited_group,
}


def greedy(states: list[str]) -> list[int]:
    """The definition, without any shortcut."""
    heads: list[int] = []
    clusters = []
    for index, state in enumerate(states):
        for head in heads:
            if SequenceMatcher(None, state, states[head]).ratio() >= THRESHOLD:
                clusters.append(head)
                break
        else:
            heads.append(index)
            clusters.append(index)
    return clusters


def measure(kind: str, workers: int) -> dict[str, float]:
    """Times one kind of groups.

    Raises:
      SystemExit: the clusters differ from the definition's.
    """
    rng = np.random.default_rng(0)
    words = make_words(rng, 3000)
    groups = [KINDS[kind](rng, words) for _ in range(GROUPS)]
    start = time.perf_counter()
    start_cpu = sum(os.times()[:4])  # of this process and the workers
    clusters = cluster_groups(groups, threshold=THRESHOLD, workers=workers)
    seconds = time.perf_counter() - start
    cpu_seconds = sum(os.times()[:4]) - start_cpu
    start = time.perf_counter()
    start_cpu = time.process_time()
    expected = [greedy(states) for states in groups[:CHECKED]]
    greedy_seconds = time.perf_counter() - start
    greedy_cpu_seconds = time.process_time() - start_cpu
    if expected != clusters[:CHECKED]:
        raise SystemExit(f"{kind}: the clusters differ from the greedy definition")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "definition_ms_per_group": round(1e3 * greedy_seconds / CHECKED, 1),
        "definition_cpu_seconds_for_all": round(greedy_cpu_seconds / CHECKED * GROUPS, 1),
        "clusters_per_group": round(float(np.mean([len(set(heads)) for heads in clusters])), 2),
    }


def main() -> None:
    """Measures every kind, prints a table and writes the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results" / "similarity.json"
    )
    args = parser.parse_args()
    print(
        f"{GROUPS} groups x {STATES} states x {LENGTH} characters, "
        f"{args.workers} workers, {os.cpu_count()} cores"
    )
    print(f"{'':12}{'seconds':>10}{'CPU s':>10}{'definition, CPU s':>20}{'clusters a group':>18}")
    results = {}
    load = os.getloadavg()[0]
    for kind in KINDS:
        row = results[kind] = measure(kind, args.workers)
        print(
            f"{kind:12}{row['seconds']:10.2f}{row['cpu_seconds']:10.2f}"
            f"{row['definition_cpu_seconds_for_all']:20.1f}{row['clusters_per_group']:18.2f}"
        )
    machine = {"cores": os.cpu_count(), "load_average": load, "python": platform.python_version()}
    record = {"workers": args.workers, "results": results, "machine": machine}
    args.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
