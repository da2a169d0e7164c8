"""Our BM25 index beside the package bm25s: build, search, order of ties, memory, start.

    python -m benchmarks.search_index [--passages 20000] [--turns 3]

Writes benchmarks/results/search_index.json. The corpus is from benchmarks/search_server.py. Both
sides index the same terms of the same passages and search the same queries, in turns, each turn in
a process of its own. Times are CPU times of one process. bm25s has two ways to select the best
passages, `numpy` and `jax`; its scores do not depend on them. One query in four asks for words
of a passage that the corpus holds several times, so that scores tie.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_server import PASSAGE_WORDS, QUERY_WORDS, TOPK, draw_texts
from gigpo_jax.envs.search.retrieval.bm25_index import (
    K1,
    VOCABULARY,
    B,
    build_index,
    extract_terms,
    open_index,
)
from gigpo_jax.envs.search.retrieval.corpus import Passages, PassageWriter
from gigpo_jax.envs.search.retrieval.retriever import Document, Hit

QUERIES = 1000
COPIES = 8  # times that a repeated passage stands in the corpus
SIDES = ("ours", "bm25s_numpy", "bm25s_jax")


def draw_passages(count: int) -> list[str]:
    """Passages; the last ones are copies of the first, so that scores tie."""
    texts = draw_texts(np.random.default_rng(0), count, PASSAGE_WORDS)
    repeated = count // 100
    for copy in range(1, COPIES):
        texts[count - copy * repeated : count - (copy - 1) * repeated] = texts[:repeated]
    return texts


def draw_queries(passages: list[str]) -> list[str]:
    """Queries of random words; one in four has words of a repeated passage."""
    rng = np.random.default_rng(1)
    queries = draw_texts(rng, QUERIES, QUERY_WORDS)
    for row in range(0, QUERIES, 4):
        words = passages[row % (len(passages) // 100)].split()
        queries[row] = " ".join(rng.choice(words, QUERY_WORDS, replace=False))
    return queries


def list_documents(passages: list[str]) -> Iterator[Document]:
    """The passages with their numbers as names."""
    for number, text in enumerate(passages):
        yield Document(str(number), text)


def build_with_bm25s(passages: list[str], out: Path) -> None:
    """Builds the same files as `build_index`, the arrays by bm25s."""
    import bm25s

    out.mkdir()
    writer = PassageWriter(out)
    vocabulary: dict[str, int] = {}
    rows = []
    for document in list_documents(passages):
        writer.add(document)
        terms = extract_terms(document.contents)
        rows.append([vocabulary.setdefault(term, len(vocabulary)) for term in terms])
    writer.close()
    model = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    tokens = bm25s.tokenization.Tokenized(rows, vocabulary)
    model.index(tokens, create_empty_token=False, show_progress=False)
    model.save(out / "bm25", show_progress=False)


class Bm25sIndex:
    """Searches an index folder with bm25s."""

    def __init__(self, folder: Path, backend: str) -> None:
        import bm25s

        self._passages = Passages(folder)
        self._backend = backend
        self._model = bm25s.BM25.load(folder / "bm25", mmap=True)
        self._model.backend = "numpy"
        vocabulary = (folder / "bm25" / VOCABULARY).read_text(encoding="utf-8")
        self._term_ids: dict[str, int] = json.loads(vocabulary)

    def search(self, query: str) -> list[Hit]:
        """The best passages, those without a term of the query left out."""
        terms = dict.fromkeys(extract_terms(query))
        ids = [self._term_ids[term] for term in terms if term in self._term_ids]
        documents, scores = self._model.retrieve(
            [ids], k=TOPK, backend_selection=self._backend, show_progress=False
        )
        pairs = zip(documents[0].tolist(), scores[0].tolist(), strict=True)
        return [Hit(self._passages[row], score) for row, score in pairs if score > 0]


def read_memory() -> float:
    """Memory of this process that is its own, MB."""
    text = Path("/proc/self/smaps_rollup").read_text()
    lines = [line.split() for line in text.splitlines()[1:]]
    kilobytes = {line[0].rstrip(":"): int(line[1]) for line in lines}
    return (kilobytes["Private_Dirty"] + kilobytes["Private_Clean"]) / 1e3


def measure_build(side: str, passages: int, folder: Path) -> dict[str, Any]:
    """CPU time and largest memory of a build."""
    texts = draw_passages(passages)
    if side != "ours":
        import bm25s  # noqa: F401
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    if side == "ours":
        build_index(list_documents(texts), folder)
    else:
        build_with_bm25s(texts, folder)
    seconds = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"build_cpu_s": seconds, "build_mb": memory / 1e3}


def measure_search(side: str, passages: int, folder: Path) -> dict[str, Any]:
    """CPU time of queries, memory of the process, and the results."""
    queries = draw_queries(draw_passages(passages))
    before = read_memory()
    started = time.process_time()
    if side == "ours":
        ours = open_index(folder)
        search = lambda query: ours.search([query], TOPK)[0]  # noqa: E731
    else:
        search = Bm25sIndex(folder, side.removeprefix("bm25s_")).search
    opening = time.process_time() - started
    for query in queries[:100]:
        search(query)
    started = time.process_time()
    hits = [search(query) for query in queries]
    seconds = time.process_time() - started
    return {
        "open_cpu_s": opening,
        "queries_per_cpu_s": QUERIES / seconds,
        "open_and_search_mb": read_memory() - before,
        "hits": [[(hit.document.id, hit.score) for hit in row] for row in hits],
    }


# A fresh interpreter prints CPU time, memory and threads after its imports.
START = """
import os, sys, time, {modules}
lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
sizes = dict(line.split()[:2] for line in lines)
memory = (int(sizes["Private_Dirty:"]) + int(sizes["Private_Clean:"])) / 1e3
threads = len(os.listdir("/proc/self/task"))
backends = len(sys.modules["jax"]._src.xla_bridge._backends) if "jax" in sys.modules else 0
print(time.process_time(), memory, threads, backends)
"""


def measure_start(side: str) -> dict[str, float]:
    """CPU time, memory and jax backends of a worker that imports a side's modules."""
    modules = "gigpo_jax.envs.search.env"
    if side != "ours":
        modules += ", bm25s"
    program = START.format(modules=modules)
    output = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment())
    names = ("start_cpu_s", "start_mb", "start_threads", "start_jax_backends")
    return dict(zip(names, map(float, output.split()), strict=True))


def environment() -> dict[str, str]:
    """One thread of linear algebra, as in workers; jax on the CPU."""
    return os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


def run_measurement(what: str, side: str, passages: int, folder: Path) -> dict[str, Any]:
    """Runs one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.search_index", "--passages", str(passages)]
    command += ["--measure", what, "--side", side, "--folder", str(folder)]
    output = subprocess.check_output(command, text=True, env=environment())
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def compare_hits(ours: list[Any], others: list[Any]) -> dict[str, float]:
    """Shares of queries with the same scores, and with the same passages in the same order."""
    scores = [[hit[1] for hit in row] for row in ours]
    other_scores = [[hit[1] for hit in row] for row in others]
    same_scores = [a == b for a, b in zip(scores, other_scores, strict=True)]
    same_hits = [a == b for a, b in zip(ours, others, strict=True)]
    return {"same_scores": float(np.mean(same_scores)), "same_hits": float(np.mean(same_hits))}


def measure_all(passages: int, turns: int) -> dict[str, Any]:
    """All measurements of all sides, in turns: medians."""
    samples: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
    hits = {}
    with tempfile.TemporaryDirectory() as root:
        for turn in range(turns):
            for side in SIDES:
                folder = Path(root) / f"{side}_{turn}"
                row = run_measurement("build", side, passages, folder)
                row |= run_measurement("search", side, passages, folder)
                row |= measure_start(side)
                hits[side] = row.pop("hits")
                for name, value in row.items():
                    samples[side].setdefault(name, []).append(value)
                print(f"turn {turn + 1} of {turns}, {side}: {row}", flush=True)
    return {
        side: {name: round(statistics.median(values), 3) for name, values in rows.items()}
        | compare_hits(hits["ours"], hits[side])
        for side, rows in samples.items()
    }


def main() -> None:
    """Measures, or runs one measurement for the program that measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--measure", choices=("build", "search"), help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure == "build":
        print(json.dumps(measure_build(args.side, args.passages, args.folder)))
    elif args.measure == "search":
        print(json.dumps(measure_search(args.side, args.passages, args.folder)))
    else:
        results = {
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "python": platform.python_version(),
            "bm25s": version("bm25s"),
            "passages": args.passages,
            "turns": args.turns,
            "results": measure_all(args.passages, args.turns),
        }
        out = Path(__file__).parent / "results" / "search_index.json"
        out.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
