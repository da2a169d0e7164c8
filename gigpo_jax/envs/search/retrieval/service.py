"""The retriever as an HTTP server.

    POST /retrieve {"queries": [..] or "query": "..", "topk": 3, "return_scores": true}
        -> {"result": [[{"document": {"id", "contents"}, "score"}, ..], ..]}; without scores the documents alone
    GET /health    -> {"status": "ok", "passages": N, ..}

Each query is searched in a thread, so requests do not wait for one another. The default address is loopback; there is
no password.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.search.retrieval.bm25_index import Bm25Index
from gigpo_jax.envs.search.retrieval.dense_index import open_dense
from gigpo_jax.envs.search.retrieval.encoder import load_encoder
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, MAX_TOPK, Hit, Retriever, optional
from gigpo_jax.errors import InputError

_web = partial(optional, "aiohttp.web")
_LOG = logging.getLogger(__name__)
MAX_BODY_BYTES = 16 << 20
MAX_QUERIES = 4096  # of one request
MAX_WAITING = 65536  # queries of all requests; beyond it new requests are refused with 503
TIMEOUT_S = 60.0  # for the head of a request (then the connection is closed), its body (408), its answer (504)


def _not_by_clients(record: logging.LogRecord) -> bool:
    """Whether a log record is not about a client's mistake: a broken request or body, a closed connection."""
    from aiohttp.http_exceptions import HttpProcessingError

    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, _web().RequestPayloadError, ConnectionError))


class _Refused(Exception):
    """A request that is not of the protocol."""


class Service:
    """Answers requests from a retriever with the aiohttp application `app`.

    Args:
      retriever: searches.
      about: the answer to `/health`.
      threads: concurrent searches; 0 = one for each core.
    """

    def __init__(self, retriever: Retriever, about: dict[str, Any], *, threads: int = 0) -> None:
        self._retriever, self._about = retriever, about
        self._together = bool(getattr(retriever, "together", False))  # one call a request, else one a query
        if threads < 0:
            raise InputError(f"--threads {threads}: give 0 (one a core) or more")
        self._threads = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="search")
        self._waiting = 0
        self._silent: dict[Any, asyncio.TimerHandle] = {}  # connections without a request so far
        web = _web()
        self.app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._heard])
        self.app.router.add_post("/retrieve", self._retrieve)
        self.app.router.add_get("/health", self._health)
        self.app.on_cleanup.append(self._close)

    def await_request(self, connection: Any) -> None:
        """Closes a new connection if it has not sent the head of a request within `TIMEOUT_S`.

        aiohttp limits the time between requests, but not the time until the first one.
        """

        def end() -> None:
            self._silent.pop(connection, None)
            connection.force_close()

        self._silent[connection] = asyncio.get_running_loop().call_later(TIMEOUT_S, end)

    @property
    def _heard(self) -> Any:
        """The middleware that notes the first request of a connection."""

        @_web().middleware
        async def heard(request: Any, handler: Any) -> Any:
            if timer := self._silent.pop(request.protocol, None):
                timer.cancel()
            return await handler(request)

        return heard

    async def _close(self, _: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _health(self, _: object) -> Any:
        return _web().json_response({"status": "ok", "waiting": self._waiting, **self._about})

    async def _retrieve(self, request: Any) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                body = await request.read()
            queries, topk, scores = read_request(body)
        except TimeoutError:
            return _error(408, f"the request was not complete within {TIMEOUT_S:g} s")
        except _Refused as err:
            return _error(400, str(err))
        except (_web().RequestPayloadError, ConnectionError) as err:
            return _error(400, f"the body cannot be read ({' '.join(str(err).split())})")
        if self._waiting + len(queries) > MAX_WAITING:
            return _error(503, f"{self._waiting} queries are waiting; ask again later")
        self._waiting += len(queries)
        try:
            loop = asyncio.get_running_loop()
            parts = [queries] if self._together else [[query] for query in queries]
            searches = [loop.run_in_executor(self._threads, self._retriever.search, part, topk) for part in parts]
            async with asyncio.timeout(TIMEOUT_S):
                found = [hits for part in await asyncio.gather(*searches) for hits in part]
        except TimeoutError:
            return _error(504, f"not done within {TIMEOUT_S:g} s")
        except EnvError as err:
            return _error(500, str(err))
        finally:
            self._waiting -= len(queries)
        return _web().json_response({"result": [[_row(hit, scores) for hit in hits] for hits in found]})


def read_request(body: bytes) -> tuple[list[str], int, bool]:
    """Queries (each cut to `MAX_QUERY_CHARS`), topk and return_scores of a request's body."""
    try:
        asked = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as err:
        raise _Refused(f"the body is not JSON in UTF-8 ({' '.join(str(err).split())})") from err
    if not isinstance(asked, dict):
        raise _Refused('the body must be an object with "queries" (or "query")')
    queries = asked.get("query") if asked.get("queries") is None else asked["queries"]
    if isinstance(queries, str):
        queries = [queries]
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _Refused('"queries" must be a list of texts, or "query" a text')
    if len(queries) > MAX_QUERIES:
        raise _Refused(f"{len(queries)} queries in one request; at most {MAX_QUERIES}")
    topk = asked.get("topk")
    topk = 3 if topk is None else topk
    if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= MAX_TOPK:
        raise _Refused(f'"topk" must be a whole number from 1 to {MAX_TOPK}')
    scores = asked.get("return_scores")
    if scores is not None and not isinstance(scores, bool):
        raise _Refused('"return_scores" must be true or false')
    return [query[:MAX_QUERY_CHARS] for query in queries], topk, bool(scores)


def _row(hit: Hit, scores: bool) -> dict[str, Any]:
    document = {"id": hit.document.id, "contents": hit.document.contents}
    return {"document": document, "score": hit.score} if scores else document


def _error(status: int, message: str) -> Any:
    headers = {"Retry-After": "1"} if status == 503 else None
    return _web().json_response({"error": message}, status=status, headers=headers)


async def serve(service: Service, host: str, port: int, started: asyncio.Future[int] | None = None) -> None:
    """Serves on an address until cancelled; port 0 is any free one.

    Args:
      started: its result is the port, once requests are answered.

    Raises:
      OSError: the port is taken.
    """
    web = _web()
    _LOG.addFilter(_not_by_clients)
    runner = web.AppRunner(service.app, access_log=None, logger=_LOG, shutdown_timeout=5.0, keepalive_timeout=TIMEOUT_S)
    await runner.setup()

    def accept() -> Any:
        connection = runner.server()
        service.await_request(connection)
        return connection

    try:
        server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=1024)
        if started is not None:
            started.set_result(server.sockets[0].getsockname()[1])
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def _run(service: Service, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    started: asyncio.Future[int] = loop.create_future()
    serving = asyncio.create_task(serve(service, host, port, started))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
    if started.done():
        sys.stdout.write(f"http://{host}:{started.result()}/retrieve\n")
        sys.stdout.flush()
    try:
        await serving
    except asyncio.CancelledError:
        if not serving.cancelled():
            raise


def run(index: Bm25Index, host: str, port: int, *, threads: int = 0, faiss: str = "", encoder: str = "") -> None:
    """Serves an index until SIGINT or SIGTERM; prints the address once requests are answered.

    With `faiss` the vectors of that index file are searched instead; `encoder` is the folder of the encoder of queries.
    """
    if bool(faiss) != bool(encoder):
        raise InputError(f"--faiss={faiss!r}, --encoder={encoder!r}: give both, or neither to search words")
    about = {"kind": "dense" if faiss else "bm25", "passages": len(index.passages), "digest": index.digest}
    retriever: Retriever = open_dense(index.passages, faiss, load_encoder(encoder, "query: ")) if faiss else index
    asyncio.run(_run(Service(retriever, about, threads=threads), host, port))
