"""Requests per second, p50 and p99 of the retriever's server with 64 clients at once.

    python benchmarks/search_server.py [--passages 100000] [--clients 64] [--requests 4000]

Writes benchmarks/results/search_server.json. The corpus is made up: passages of 100 words with the
word frequencies of natural language, queries of 6 of their words, topk 3. The server runs in a
process of its own, and so do the clients, on this machine: they share its cores. Beside it: the
same searches in this process, one after the other, and the same load on a server with one search
thread, and the load of as many episodes that share a client, which batches.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import numpy as np

from gigpo_jax.envs.search.retrieval.bm25_index import build_index, open_index
from gigpo_jax.envs.search.retrieval.client import RetrieverClient
from gigpo_jax.envs.search.retrieval.retriever import Document

WORDS = 60_000
PASSAGE_WORDS = 100
QUERY_WORDS = 6
TOPK = 3


def draw_texts(rng: np.random.Generator, count: int, length: int) -> list[str]:
    """Texts of words w0, w1, .. with Zipf frequencies."""
    frequency = 1.0 / (np.arange(WORDS) + 2.7)
    ranks = rng.choice(WORDS, (count, length), p=frequency / frequency.sum())
    return [" ".join(f"w{rank}" for rank in row) for row in ranks]


def draw_documents(rng: np.random.Generator, count: int) -> Iterator[Document]:
    """Yields passages, a thousand drawn at a time."""
    number = 0
    for _ in range(0, count, 1000):
        for text in draw_texts(rng, 1000, PASSAGE_WORDS):
            yield Document(str(number), text)
            number += 1


async def _send_requests(url: str, queries: list[str], clients: int) -> list[float]:
    """Sends one request a query, `clients` at a time; seconds of each."""
    latencies: list[float] = []
    remaining = iter(queries)

    async def client(session: aiohttp.ClientSession) -> None:
        for query in remaining:
            started = time.perf_counter()
            async with session.post(
                url, json={"queries": [query], "topk": TOPK, "return_scores": True}
            ) as answer:
                assert answer.status == 200
                assert len((await answer.json())["result"]) == 1
            latencies.append(time.perf_counter() - started)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return latencies


def measure_requests(url: str, queries: list[str], clients: int) -> dict[str, float]:
    """Requests/s and latencies in ms of plain requests."""
    started = time.perf_counter()
    latencies = asyncio.run(_send_requests(url, queries, clients))
    seconds = time.perf_counter() - started
    assert len(latencies) == len(queries)
    return {"requests_per_s": round(len(queries) / seconds, 1), **summarise_latencies(latencies)}


def summarise_latencies(latencies: list[float]) -> dict[str, float]:
    """Median and 99th percentile, ms."""
    p50, p99 = np.quantile(latencies, (0.5, 0.99))
    return {"p50_ms": round(1000 * float(p50), 1), "p99_ms": round(1000 * float(p99), 1)}


def measure_searches(url: str, queries: list[str], episodes: int) -> dict[str, float]:
    """Searches/s of episodes that share the client of one worker process, which batches them."""
    client = RetrieverClient(url)
    latencies: list[float] = []

    def search(query: str) -> None:
        started = time.perf_counter()
        client.search([query], TOPK)
        latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    with ThreadPoolExecutor(episodes) as threads:
        list(threads.map(search, queries))
    seconds = time.perf_counter() - started
    client.close()
    return {"searches_per_s": round(len(queries) / seconds, 1), **summarise_latencies(latencies)}


def serve_and_measure(
    index: Path,
    queries: list[str],
    clients: int,
    threads: int,
    measure: Callable[..., dict[str, float]] = measure_requests,
) -> dict[str, float]:
    """Starts a server, warms it up, and measures it under load."""
    command = [
        sys.executable,
        "-m",
        "gigpo_jax.envs.search.server",
        "--corpus",
        str(index),
        "--port",
        "0",
    ]
    with subprocess.Popen(
        [*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            measure(url, queries[:200], clients)
            return measure(url, queries, clients)
        finally:
            process.terminate()


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=4000)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    queries = draw_texts(rng, args.requests, QUERY_WORDS)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        index = build_index(draw_documents(rng, args.passages), Path(folder) / "index")
        build_s = time.perf_counter() - started
        size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
        local = open_index(index)
        started = time.perf_counter()
        for query in queries[:500]:
            local.search([query], TOPK)
        queries_per_s = 500 / (time.perf_counter() - started)
        results = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "python": platform.python_version(),
            "passages": args.passages,
            "clients": args.clients,
            "requests": args.requests,
            "build_s": round(build_s, 1),
            "index_mb": round(size / 1e6, 1),
            "in_process_queries_per_s": round(queries_per_s, 1),
            "server_one_thread": serve_and_measure(index, queries, args.clients, 1),
            "server": serve_and_measure(index, queries, args.clients, 0),
            "server_and_batching_client": serve_and_measure(
                index, queries, args.clients, 0, measure_searches
            ),
        }
    out = Path(__file__).parent / "results" / "search_server.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
