"""Requests per second, p50 and p99 of the retriever's server with 64 clients at once.

    python benchmarks/search_server.py [--passages 100000] [--clients 64] [--requests 4000]

Writes benchmarks/results/search_server.json. The corpus is made up: passages of 100 words with the word frequencies of
natural language, queries of 6 of their words, topk 3. The server runs in a process of its own, and so do the clients,
on this machine: they share its cores. Beside it: the same searches in this process, one after the other, and the same
load on a server with one search thread, and the load of as many episodes that share a client, which batches.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import numpy as np

from gigpo_jax.envs.search.retrieval.bm25_index import build_index, open_index
from gigpo_jax.envs.search.retrieval.client import RetrieverClient
from gigpo_jax.envs.search.retrieval.retriever import Document

WORDS, PASSAGE, QUERY, TOPK = 60_000, 100, 6, 3


def draw(rng: np.random.Generator, count: int, length: int) -> list[str]:
    """Texts of words w0, w1, .. with Zipf frequencies."""
    frequency = 1.0 / (np.arange(WORDS) + 2.7)
    ranks = rng.choice(WORDS, (count, length), p=frequency / frequency.sum())
    return [" ".join(f"w{rank}" for rank in row) for row in ranks]


async def _load(url: str, queries: list[str], clients: int) -> list[float]:
    """Sends one request a query, `clients` at a time; seconds of each."""
    taken: list[float] = []
    waiting = iter(queries)

    async def client(session: aiohttp.ClientSession) -> None:
        for query in waiting:
            started = time.perf_counter()
            async with session.post(url, json={"queries": [query], "topk": TOPK, "return_scores": True}) as answer:
                assert answer.status == 200
                assert len((await answer.json())["result"]) == 1
            taken.append(time.perf_counter() - started)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return taken


def load(url: str, queries: list[str], clients: int) -> dict[str, float]:
    """Requests/s and latencies in ms of plain requests."""
    started = time.perf_counter()
    taken = asyncio.run(_load(url, queries, clients))
    seconds = time.perf_counter() - started
    assert len(taken) == len(queries)
    p50, p99 = (round(1000 * float(np.quantile(taken, q)), 1) for q in (0.5, 0.99))
    return {"requests_per_s": round(len(queries) / seconds, 1), "p50_ms": p50, "p99_ms": p99}


def load_batched(url: str, queries: list[str], episodes: int) -> dict[str, float]:
    """Searches/s of so many episodes that share the client of one worker process, which batches them."""
    client, taken = RetrieverClient(url), list[float]()

    def search(query: str) -> None:
        started = time.perf_counter()
        client.search([query], TOPK)
        taken.append(time.perf_counter() - started)

    started = time.perf_counter()
    with ThreadPoolExecutor(episodes) as threads:
        list(threads.map(search, queries))
    seconds = time.perf_counter() - started
    client.close()
    p50, p99 = (round(1000 * float(np.quantile(taken, q)), 1) for q in (0.5, 0.99))
    return {"searches_per_s": round(len(queries) / seconds, 1), "p50_ms": p50, "p99_ms": p99}


def serve_and_load(
    index: Path, queries: list[str], clients: int, threads: int, load: Callable[..., dict[str, float]] = load
) -> dict[str, float]:
    """Starts a server, warms it up, and loads it."""
    command = [sys.executable, "-m", "gigpo_jax.envs.search.server", "--corpus", str(index), "--port", "0"]
    with subprocess.Popen([*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            load(url, queries[:200], clients)
            return load(url, queries, clients)
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
    queries = draw(rng, args.requests, QUERY)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        texts = (text for _ in range(0, args.passages, 1000) for text in draw(rng, 1000, PASSAGE))
        index = build_index((Document(str(n), text) for n, text in enumerate(texts)), Path(folder) / "index")
        built = time.perf_counter() - started
        size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
        local = open_index(index)
        started = time.perf_counter()
        for query in queries[:500]:
            local.search([query], TOPK)
        alone = 500 / (time.perf_counter() - started)
        results = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "python": platform.python_version(),
            "passages": args.passages,
            "clients": args.clients,
            "requests": args.requests,
            "build_s": round(built, 1),
            "index_mb": round(size / 1e6, 1),
            "in_process_queries_per_s": round(alone, 1),
            "server_one_thread": serve_and_load(index, queries, args.clients, 1),
            "server": serve_and_load(index, queries, args.clients, 0),
            "server_and_batching_client": serve_and_load(index, queries, args.clients, 0, load_batched),
        }
    out = Path(__file__).parent / "results" / "search_server.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
