"""An asynchronous client of the `/retrieve` protocol, with batches and retries.

All searches of a process use one event loop, in its own thread. Searches within `GATHER_S` of each
other, or while `IN_FLIGHT` requests are pending, share a request. A failed request is retried with
growing pauses until a limit. After that the retriever counts as down until it answers: one request
at a time is tried once with the full time-out, the others once with a short one. So waiting
episodes are aborted in seconds, and a retriever that is only slow is used again.
"""

import asyncio
import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.search.retrieval.protocol import (
    MAX_ANSWER_BYTES,
    RETRIED,
    Malformed,
    quote_excerpt,
    read_hits,
)
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, Hit

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
SHORT_TRY_S = 2.0  # time-out of a request while the retriever is down
GATHER_S = 0.002  # wait of a query for others to share its request
BATCH = 64  # queries of one request
IN_FLIGHT = 8  # requests
_MARGIN_S = 30.0  # beyond the limit; then a search fails even if the loop does not answer


class _Failed(Exception):
    """A request failed, and may succeed when it is retried.

    Attributes:
      stale: Whether the server may have closed an idle connection.
      hurried: Whether it had less than the full time-out. Its failure is then no evidence that the
        retriever is down.
    """

    def __init__(self, reason: str, *, stale: bool = False, hurried: bool = False) -> None:
        super().__init__(reason)
        self.stale = stale
        self.hurried = hurried


class _RefusedRequest(EnvError):
    """A response that a retry would not change."""


def complete_url(url: str) -> str:
    """Returns `url`, with the path /retrieve if it has none.

    Raises:
      InputError: the URL cannot be used.
    """
    try:
        split = urlsplit(url)
        host = split.hostname
        _ = split.port  # a port that is no number raises here
    except ValueError as err:
        raise InputError(str(err), key="config.env.options.url", value=repr(url)) from err
    if split.scheme not in ("http", "https") or not host:
        raise InputError(
            "no address of http or https",
            key="config.env.options.url",
            value=repr(url),
            fix="give it like http://127.0.0.1:8000",
        )
    path = split.path if split.path not in ("", "/") else "/retrieve"
    return urlunsplit((split.scheme, split.netloc, path, split.query, ""))


class RetrieverClient:
    """A `Retriever` behind a URL, which connects with the first search.

    Args:
      url: Address of the server, http(s)://host:port, with a path if it is not /retrieve.
      timeout_s: Limit of one request, s.
      limit_s: Limit of a search with all its retries, s.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0, limit_s: float = 45.0) -> None:
        self._url = complete_url(url)
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        with optional_imports("search", key="config.env.options.url"):
            import aiohttp  # noqa: F401  `_post` needs it
        self._lock = threading.Lock()
        self._loop: _Loop | None = None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Searches as `Retriever.search`; blocks.

        Raises:
          EnvError: no response within the limit, a refusal, or one that is not of the protocol.
        """
        # The loop ends every search within its limit. The margin is for a loop that hangs itself.
        limit_s = self._limit_s + _MARGIN_S
        try:
            return self.submit(queries, topk).result(limit_s)
        except TimeoutError as err:
            raise EnvError(f"retriever {self._url}: no end within {limit_s:g} s") from err

    def submit(self, queries: Sequence[str], topk: int) -> "Future[list[list[Hit]]]":
        """Starts a search; the future has the result of `search`."""
        # A lone surrogate cannot be sent as UTF-8; it becomes a question mark.
        sent = [query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode() for query in queries]
        with self._lock:
            # Retrievers may be called from several threads, and one of them starts the loop.
            if self._loop is None:
                self._loop = _Loop(self._url, self._timeout_s, self._limit_s)
                atexit.register(self.close)
            search = self._loop.search_queries(sent, topk)
            return asyncio.run_coroutine_threadsafe(search, self._loop.loop)

    def close(self) -> None:
        """Ends the loop; pending searches fail, and later ones start another loop."""
        with self._lock:
            loop = self._loop
            self._loop = None
        if loop is not None:
            atexit.unregister(self.close)
            loop.close()


@dataclass(eq=False)
class _PendingQuery:
    """A query that was not sent yet; `deadline` is in s on the monotonic clock."""

    query: str
    topk: int
    deadline: float
    future: "asyncio.Future[list[Hit]]"


class _Loop:
    """The event loop of a client, in which all methods but `__init__` and `close` run."""

    def __init__(self, url: str, timeout_s: float, limit_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        self._pending: deque[_PendingQuery] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._session: Any = None
        self._down = False
        self._probing = (
            False  # whether a request with the full time-out tests a server that is down
        )
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="retriever client", daemon=True
        )
        self._thread.start()

    async def search_queries(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Searches each query, in requests shared with other searches."""
        deadline = time.monotonic() + self._limit_s
        futures = []
        for query in queries:
            future: asyncio.Future[list[Hit]] = self.loop.create_future()
            self._pending.append(_PendingQuery(query, topk, deadline, future))
            futures.append(future)
        if self._timer is None:
            self._timer = self.loop.call_later(GATHER_S, self._send_batches)

        # Waits for all, also after a failure: asyncio logs the error of a future nobody awaits.
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        results = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            results.append(outcome)
        return results

    def _send_batches(self) -> None:
        """Sends pending queries, up to `IN_FLIGHT` requests."""
        self._timer = None
        while self._pending and len(self._requests) < IN_FLIGHT:
            batch: list[_PendingQuery] = []
            # A request has one topk; queries with another one wait for the next request.
            topk = self._pending[0].topk
            while self._pending and self._pending[0].topk == topk and len(batch) < BATCH:
                batch.append(self._pending.popleft())
            # Kept in `_requests`: the loop itself holds tasks weakly, and one could be collected.
            request = self.loop.create_task(self._answer_batch(batch))
            self._requests.add(request)
            request.add_done_callback(self._finish_request)

    def _finish_request(self, request: "asyncio.Task[None]") -> None:
        # While a timer runs, its call sends what is pending, and others may still join the batch.
        self._requests.discard(request)
        if self._timer is None:
            self._send_batches()

    async def _answer_batch(self, batch: list[_PendingQuery]) -> None:
        """Sets a batch's futures to their hits or an error."""
        try:
            results = await self._request_hits(batch)
            for pending, hits in zip(batch, results, strict=True):
                _settle_future(pending.future, hits)
        except _RefusedRequest as err:
            # The query itself is refused; in a batch it is not known which one.
            if len(batch) == 1:
                _settle_future(batch[0].future, err)
            else:  # one bad query must not abort the episodes of the others
                await asyncio.gather(*(self._answer_batch([pending]) for pending in batch))
        except EnvError as err:
            for pending in batch:
                _settle_future(pending.future, EnvError(str(err)))
        except BaseException as err:  # the loop is closed, or a bug: every query gets a result
            message = f"retriever {self._url}: {type(err).__name__}: {err}"
            for pending in batch:
                _settle_future(pending.future, EnvError(message))
            raise

    async def _request_hits(self, batch: list[_PendingQuery]) -> list[list[Hit]]:
        """Requests a batch; retries unless the retriever counts as down."""
        body = {
            "queries": [pending.query for pending in batch],
            "topk": batch[0].topk,
            "return_scores": True,
        }
        # The oldest query of the batch: no query waits longer than its limit.
        deadline = batch[0].deadline
        if not self._down:
            return await self._retry_until(deadline, body, once=False)
        if self._probing:
            return await self._retry_until(time.monotonic() + SHORT_TRY_S, body, once=True)
        # No await since the test above, so no second request can become the probe.
        self._probing = True
        try:
            probe_deadline = min(deadline, time.monotonic() + self._timeout_s)
            return await self._retry_until(probe_deadline, body, once=True)
        finally:
            self._probing = False

    async def _retry_until(
        self, deadline: float, body: dict[str, Any], *, once: bool
    ) -> list[list[Hit]]:
        """Sends a request until an answer or the deadline.

        Args:
          deadline: Last start of a try, s on the monotonic clock.
          body: JSON of the request.
          once: Whether the first failure is final.
        """
        pause = FIRST_PAUSE_S
        tries = 0
        evidence = False  # whether a failure had the full time-out
        while True:
            tries += 1
            try:
                response = await self._post(body, deadline)
                self._down = False
                return read_hits(response, len(body["queries"]))
            except Malformed as err:
                raise _RefusedRequest(f"retriever {self._url}: {err}") from err
            except _Failed as err:
                # A server may close an idle connection at any time: a new one, at once.
                if err.stale and tries == 1:
                    continue
                # A try that the limit cut short says nothing about the retriever.
                evidence = evidence or not err.hurried
                if once or time.monotonic() + pause >= deadline:
                    self._down = self._down or evidence
                    raise self._give_up(tries, evidence or once, err) from err
            # Growing pauses: a server that starts again is not flooded by all workers.
            await asyncio.sleep(pause)
            # Bounded, so that a server that is back is noticed within seconds.
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _give_up(self, tries: int, evidence: bool, err: _Failed) -> EnvError:
        if not evidence:
            return EnvError(
                f"retriever {self._url}: too slow, little was left of {self._limit_s:g} s "
                "after waiting in line"
            )
        times = "once" if tries == 1 else f"{tries} times"
        return EnvError(f"retriever {self._url}: asked {times}, then gave up ({err}); is it up?")

    async def _post(self, body: dict[str, Any], deadline: float) -> bytes:
        """Sends a request once; returns the body of status 200."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                # `IN_FLIGHT` limits the requests already.
                connector=aiohttp.TCPConnector(limit=0),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,  # a small response could unpack to a huge one
            )
        # asyncio.timeout(0) would cancel before a request is sent.
        timeout_s = max(min(deadline - time.monotonic(), self._timeout_s), 0.01)
        try:
            async with (
                asyncio.timeout(timeout_s),
                # A redirected POST can lose its body; the status is reported instead.
                self._session.post(self._url, json=body, allow_redirects=False) as response,
            ):
                content = await self._read_body(response)
        except TimeoutError as err:
            hurried = timeout_s < 0.9 * min(self._timeout_s, self._limit_s)
            raise _Failed("no answer in time", hurried=hurried) from err
        except (aiohttp.ClientError, OSError) as err:
            stale = isinstance(err, aiohttp.ServerDisconnectedError)
            raise _Failed(_describe_connection_error(err), stale=stale) from err
        if response.status in RETRIED:
            raise _Failed(f"HTTP status {response.status}")
        if response.status != 200:
            raise _RefusedRequest(
                f"retriever {self._url}: HTTP status {response.status}, {quote_excerpt(content)}"
            )
        return content

    async def _read_body(self, response: Any) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            content += chunk
            # Counted while it arrives: the announced length may be missing or false.
            if len(content) > MAX_ANSWER_BYTES:
                raise _RefusedRequest(
                    f"retriever {self._url}: its answer is larger than {MAX_ANSWER_BYTES >> 20} MiB"
                )
        return bytes(content)

    def close(self) -> None:
        shutdown = asyncio.run_coroutine_threadsafe(self._cancel_requests(), self.loop)
        try:
            shutdown.result(5.0)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5.0)
            if not self._thread.is_alive():
                self.loop.close()

    async def _cancel_requests(self) -> None:
        # Futures first: whoever waits for them is woken, even if closing the session fails.
        cancelled = list(self._pending)
        self._pending.clear()
        for pending in cancelled:
            error = EnvError(f"retriever {self._url}: the client was closed")
            _settle_future(pending.future, error)
        for request in list(self._requests):
            request.cancel()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


def _settle_future(future: "asyncio.Future[list[Hit]]", outcome: list[Hit] | EnvError) -> None:
    # The search was cancelled meanwhile.
    if future.done():
        return
    if isinstance(outcome, EnvError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _describe_connection_error(err: Exception) -> str:
    """Describes a connection error in one line, in the system's words if it has a number."""
    number = getattr(getattr(err, "os_error", err), "errno", None)
    text = str(err) or type(err).__name__
    if isinstance(number, int) and number > 0:
        text = os.strerror(number)
    return " ".join(text.split())[:200]
