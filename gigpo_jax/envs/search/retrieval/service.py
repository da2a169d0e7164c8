"""The retriever as an HTTP server.

    POST /retrieve {"queries": [..] or "query": "..", "topk": 3, "return_scores": true}
        -> {"result": [[{"document": {"id", "contents"}, "score"}, ..], ..]}
           without scores: [[{"id", "contents"}, ..], ..]
    GET /health    -> {"status": "ok", "passages": N, ..}

Each query is searched in a thread, so requests do not wait for one another. The default address is
loopback; there is no password.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.core.web_server import ConnectionGuard, host_error, is_json, is_server_fault
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.search.retrieval.bm25_index import Bm25Index
from gigpo_jax.envs.search.retrieval.dense_index import open_dense
from gigpo_jax.envs.search.retrieval.encoder import load_encoder
from gigpo_jax.envs.search.retrieval.retriever import (
    MAX_QUERY_CHARS,
    MAX_TOPK,
    Hit,
    Retriever,
)

_LOG = logging.getLogger(__name__)
MAX_BODY_BYTES = 16 << 20
MAX_QUERIES = 4096  # of one request
MAX_WAITING = 65536  # queries of all requests; beyond it new requests are refused with 503
# for the head of a request (then the connection is closed), its body (408), its answer (504)
TIMEOUT_S = 60.0


class _RefusedQuery(Exception):
    """A request that is not of the protocol."""


class Service:
    """Answers requests from a retriever with the aiohttp application `app`.

    Args:
      retriever: Retriever that searches; one call a query, or one a request if it has `together`.
      about: Fields of the response to `/health`.
      threads: Number of concurrent searches; 0 = one for each core.

    Attributes:
      app: aiohttp application.
      guard: Guard of its connections.
      host: Address that it listens on.
    """

    def __init__(self, retriever: Retriever, about: dict[str, Any], *, threads: int = 0) -> None:
        self._retriever = retriever
        self._about = about
        self._together = bool(getattr(retriever, "together", False))
        if threads < 0:
            raise InputError("must be 0 (one a core) or more", key="--threads", value=threads)
        self._threads = ThreadPoolExecutor(
            threads or os.cpu_count() or 1, thread_name_prefix="search"
        )
        self._waiting = 0
        self.guard = ConnectionGuard(_LOG, lambda: TIMEOUT_S)
        self.host = "127.0.0.1"
        web = _import_web()
        self.app = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[self._check_middleware()]
        )
        self.app.router.add_post("/retrieve", self._handle_retrieve)
        self.app.router.add_get("/health", self._handle_health)
        self.app.on_cleanup.append(self._stop_threads)

    def _check_middleware(self) -> Any:
        """Creates middleware that refuses requests of other sites' pages."""

        @_import_web().middleware
        async def check_request(request: Any, handler: Any) -> Any:
            # A page of another site in a browser could send requests to loopback (DNS rebinding).
            error = host_error(request.headers.get("Host"), self.host, "--host=")
            if error:
                return _error_response(400, error)
            if request.method == "POST" and not is_json(request.headers.get("Content-Type")):
                return _error_response(415, "Content-Type: must be application/json")
            # From here on the connection counts as one of a real client.
            self.guard.accept(request.protocol)
            return await handler(request)

        return check_request

    async def _stop_threads(self, _: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _handle_health(self, _: object) -> Any:
        status = {"status": "ok", "waiting": self._waiting, **self._about}
        return _import_web().json_response(status)

    async def _handle_retrieve(self, request: Any) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                body = await request.read()
            queries, topk, with_scores = read_request(body)
        except TimeoutError:
            return _error_response(408, f"the request was not complete within {TIMEOUT_S:g} s")
        except _RefusedQuery as err:
            return _error_response(400, str(err))
        except (_import_web().RequestPayloadError, ConnectionError) as err:
            reason = " ".join(str(err).split())
            return _error_response(400, f"the body cannot be read ({reason})")
        # 503 is retried by clients: memory stays bounded, and no query is lost.
        if self._waiting + len(queries) > MAX_WAITING:
            return _error_response(503, f"{self._waiting} queries are waiting; ask again later")
        # All in one thread and no await since the test: the count needs no lock.
        self._waiting += len(queries)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                results = await self._search_in_threads(queries, topk)
        except TimeoutError:
            return _error_response(504, f"not done within {TIMEOUT_S:g} s")
        except EnvError as err:
            return _error_response(500, str(err))
        finally:
            self._waiting -= len(queries)
        rows = [[_hit_json(hit, with_scores) for hit in hits] for hits in results]
        return _import_web().json_response({"result": rows})

    async def _search_in_threads(self, queries: list[str], topk: int) -> list[list[Hit]]:
        loop = asyncio.get_running_loop()
        # One call a query: the searches of a request run in parallel.
        batches = [queries] if self._together else [[query] for query in queries]
        searches = [
            loop.run_in_executor(self._threads, self._retriever.search, batch, topk)
            for batch in batches
        ]
        results = []
        for batch_results in await asyncio.gather(*searches):
            results += batch_results
        return results


def read_request(body: bytes) -> tuple[list[str], int, bool]:
    """Reads the body of a request.

    Returns:
      The queries, each cut to `MAX_QUERY_CHARS`; topk; return_scores.
    """
    try:
        fields = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as err:
        raise _RefusedQuery(
            f"the body is not JSON in UTF-8 ({' '.join(str(err).split())})"
        ) from err
    if not isinstance(fields, dict):
        raise _RefusedQuery('the body must be an object with "queries" (or "query")')
    topk = fields.get("topk")
    if topk is None:
        topk = 3
    # bool is a kind of int in Python.
    if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= MAX_TOPK:
        raise _RefusedQuery(f'"topk" must be a whole number from 1 to {MAX_TOPK}')
    with_scores = fields.get("return_scores")
    if with_scores is not None and not isinstance(with_scores, bool):
        raise _RefusedQuery('"return_scores" must be true or false')
    return _read_queries(fields), topk, bool(with_scores)


def _read_queries(fields: dict[str, Any]) -> list[str]:
    queries = fields.get("queries")
    if queries is None:
        queries = fields.get("query")
    if isinstance(queries, str):
        queries = [queries]
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _RefusedQuery('"queries" must be a list of texts, or "query" a text')
    if len(queries) > MAX_QUERIES:
        raise _RefusedQuery(f"{len(queries)} queries in one request; at most {MAX_QUERIES}")
    return [query[:MAX_QUERY_CHARS] for query in queries]


def _hit_json(hit: Hit, with_score: bool) -> dict[str, Any]:
    document = {"id": hit.document.id, "contents": hit.document.contents}
    return {"document": document, "score": hit.score} if with_score else document


def _import_web() -> Any:
    with optional_imports("search"):
        from aiohttp import web
    return web


def _error_response(status: int, message: str) -> Any:
    headers = {"Retry-After": "1"} if status == 503 else None
    return _import_web().json_response({"error": message}, status=status, headers=headers)


async def serve_requests(
    service: Service, host: str, port: int, started: asyncio.Future[int] | None = None
) -> None:
    """Serves on an address until cancelled.

    Args:
      service: Application and its connections.
      host: Address to listen on.
      port: Port to listen on; 0 = any free one.
      started: Future whose result is the port, once requests are answered.

    Raises:
      OSError: the port is taken.
    """
    web = _import_web()
    _LOG.addFilter(is_server_fault)
    runner = web.AppRunner(
        service.app, access_log=None, logger=_LOG, shutdown_timeout=5.0, keepalive_timeout=TIMEOUT_S
    )
    await runner.setup()
    service.host = host
    service.guard.attach(runner.server)
    try:
        server = await asyncio.get_running_loop().create_server(
            runner.server, host, port, backlog=service.guard.backlog
        )
        if started is not None:
            started.set_result(server.sockets[0].getsockname()[1])
        try:
            await asyncio.Event().wait()  # for ever; cancelling the task ends it
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def _serve_until_interrupt(service: Service, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    started: asyncio.Future[int] = loop.create_future()
    server = asyncio.create_task(serve_requests(service, host, port, started))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.cancel)
    # The server may also end before it listens, if the port is taken.
    await asyncio.wait((server, started), return_when=asyncio.FIRST_COMPLETED)
    if started.done():
        sys.stdout.write(f"http://{host}:{started.result()}/retrieve\n")
        sys.stdout.flush()
    try:
        await server
    except asyncio.CancelledError:
        # A cancelled server is the orderly end after an interrupt.
        if not server.cancelled():
            raise


def run_server(
    index: Bm25Index, host: str, port: int, *, threads: int = 0, faiss: str = "", encoder: str = ""
) -> None:
    """Serves an index until SIGINT or SIGTERM; prints the address once requests are answered.

    Args:
      index: Index of the corpus.
      host: Address to listen on.
      port: Port to listen on; 0 = any free one.
      threads: Number of concurrent searches; 0 = one for each core.
      faiss: Path of a faiss index; its vectors are searched instead of words.
      encoder: Folder of the encoder of queries, for `faiss`.
    """
    if bool(faiss) != bool(encoder):
        raise InputError(
            "one needs the other",
            key=f"--faiss={faiss!r} --encoder",
            value=repr(encoder),
            fix="give both, or neither to search words",
        )
    retriever: Retriever = index
    if faiss:
        retriever = open_dense(index.passages, faiss, load_encoder(encoder, "query: "))
    about = {
        "kind": "dense" if faiss else "bm25",
        "passages": len(index.passages),
        "digest": index.digest,
    }
    asyncio.run(_serve_until_interrupt(Service(retriever, about, threads=threads), host, port))
