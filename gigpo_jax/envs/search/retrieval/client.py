"""An asynchronous client of the `/retrieve` protocol, with batches and retries.

All searches of a process use one event loop, in its own thread. Searches within `GATHER_S` of each other, or while
`IN_FLIGHT` requests are pending, share a request. A failed request is retried with growing pauses until a limit. After
that the retriever counts as down until it answers: one request at a time is tried once with the full time-out, the
others once with a short one. So waiting episodes are aborted in seconds, and a slow retriever is found again.
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

from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.search.retrieval.protocol import MAX_ANSWER_BYTES, RETRIED, Malformed, excerpt, read_answer
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, Hit, optional
from gigpo_jax.errors import InputError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
SHORT_TRY_S = 2.0  # time-out of a request while the retriever is down
GATHER_S = 0.002  # how long a query waits for others
BATCH = 64  # queries of one request
IN_FLIGHT = 8  # requests
_MARGIN_S = 30.0  # beyond the limit; then a search fails even if the loop does not answer


class _Failed(Exception):
    """A request failed, and may succeed when it is retried.

    `stale`: the server may have closed an idle connection. `hurried`: it had less than the full time-out, so its
    failure is no evidence that the retriever is down.
    """

    def __init__(self, what: str, *, stale: bool = False, hurried: bool = False) -> None:
        super().__init__(what)
        self.stale, self.hurried = stale, hurried


class _Refused(EnvError):
    """A request got an answer that a retry would not change."""


def retrieve_url(url: str) -> str:
    """The URL of requests: `url`, with the path /retrieve if it has none. InputError for one that cannot be used."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as err:
        raise InputError(f"config.env.options.url={url!r}: {err}") from err
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"config.env.options.url={url!r}: give it like http://127.0.0.1:8000")
    path = parts.path if parts.path not in ("", "/") else "/retrieve"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


class RetrieverClient:
    """A `Retriever` behind a URL. It connects with the first search.

    Args:
      url: http(s)://host:port, with a path if it is not /retrieve.
      timeout_s: of one request, s.
      limit_s: of a search with all its retries, s.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0, limit_s: float = 45.0) -> None:
        self._url, self._timeout_s, self._limit_s = retrieve_url(url), timeout_s, limit_s
        optional("aiohttp", key="config.env.options.url: ")
        self._lock = threading.Lock()
        self._loop: _Loop | None = None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """As `Retriever.search`; blocks.

        Raises:
          EnvError: no answer within the limit, a refusal, or an answer that is not of the protocol.
        """
        try:
            return self.submit(queries, topk).result(self._limit_s + _MARGIN_S)
        except TimeoutError as err:
            raise EnvError(f"retriever {self._url}: no end within {self._limit_s + _MARGIN_S:g} s") from err

    def submit(self, queries: Sequence[str], topk: int) -> "Future[list[list[Hit]]]":
        """Starts a search; the future has the result of `search`."""
        cut = [query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode() for query in queries]
        with self._lock:
            if self._loop is None:
                self._loop = _Loop(self._url, self._timeout_s, self._limit_s)
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(self._loop.find(cut, topk), self._loop.loop)

    def close(self) -> None:
        """Ends the loop; pending searches fail, later ones start another loop."""
        with self._lock:
            line, self._loop = self._loop, None
        if line is not None:
            atexit.unregister(self.close)
            line.close()


@dataclass(eq=False)
class _Waiting:
    """A query that was not sent yet; `deadline` in s on the monotonic clock."""

    query: str
    topk: int
    deadline: float
    future: "asyncio.Future[list[Hit]]"


class _Loop:
    """The event loop of a client. All methods but `__init__` and `close` run in it."""

    def __init__(self, url: str, timeout_s: float, limit_s: float) -> None:
        self._url, self._timeout_s, self._limit_s = url, timeout_s, limit_s
        self._waiting: deque[_Waiting] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._session: Any = None
        self._down = self._probing = False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="retriever client", daemon=True)
        self._thread.start()

    async def find(self, queries: list[str], topk: int) -> list[list[Hit]]:
        deadline = time.monotonic() + self._limit_s
        waiting = [_Waiting(query, topk, deadline, self.loop.create_future()) for query in queries]
        self._waiting.extend(waiting)
        if self._timer is None:
            self._timer = self.loop.call_later(GATHER_S, self._send)
        found = await asyncio.gather(*(one.future for one in waiting), return_exceptions=True)
        for hits in found:
            if isinstance(hits, BaseException):
                raise hits
        return found  # type: ignore[return-value]

    def _send(self) -> None:
        """Sends waiting queries, up to `IN_FLIGHT` requests."""
        self._timer = None
        while self._waiting and len(self._requests) < IN_FLIGHT:
            batch: list[_Waiting] = []
            topk = self._waiting[0].topk
            while self._waiting and self._waiting[0].topk == topk and len(batch) < BATCH:
                batch.append(self._waiting.popleft())
            request = self.loop.create_task(self._answer(batch))
            self._requests.add(request)
            request.add_done_callback(self._done)

    def _done(self, request: "asyncio.Task[None]") -> None:
        self._requests.discard(request)
        if self._timer is None:
            self._send()

    async def _answer(self, batch: list[_Waiting]) -> None:
        try:
            found = await self._ask_again(batch)
            for one, hits in zip(batch, found, strict=True):
                _settle(one.future, hits)
        except _Refused as err:
            if len(batch) == 1:
                _settle(batch[0].future, err)
            else:  # one bad query must not abort the episodes of the others
                await asyncio.gather(*(self._answer([one]) for one in batch))
        except EnvError as err:
            for one in batch:
                _settle(one.future, EnvError(str(err)))
        except BaseException as err:  # the loop is closed, or a bug: every query gets a result
            for one in batch:
                _settle(one.future, EnvError(f"retriever {self._url}: {type(err).__name__}: {err}"))
            raise

    async def _ask_again(self, batch: list[_Waiting]) -> list[list[Hit]]:
        body = {"queries": [one.query for one in batch], "topk": batch[0].topk, "return_scores": True}
        deadline, down = batch[0].deadline, self._down
        if down and not self._probing:
            self._probing = True
            try:
                return await self._ask_until(min(deadline, time.monotonic() + self._timeout_s), body, once=True)
            finally:
                self._probing = False
        return await self._ask_until(time.monotonic() + SHORT_TRY_S if down else deadline, body, once=down)

    async def _ask_until(self, deadline: float, body: dict[str, Any], *, once: bool) -> list[list[Hit]]:
        """Sends a request until it is answered, or the next try would start after the deadline."""
        pause, tries, evidence = FIRST_PAUSE_S, 0, False
        while True:
            tries += 1
            try:
                answer = await self._ask(body, deadline)
                self._down = False
                return read_answer(answer, len(body["queries"]))
            except Malformed as err:
                raise _Refused(f"retriever {self._url}: {err}") from err
            except _Failed as err:
                if err.stale and tries == 1:
                    continue
                evidence = evidence or not err.hurried
                if once or time.monotonic() + pause >= deadline:
                    self._down = self._down or evidence
                    if not evidence and not once:
                        waited = f"little was left of {self._limit_s:g} s after waiting in line"
                        raise EnvError(f"retriever {self._url}: too slow, {waited}") from err
                    times = "once" if tries == 1 else f"{tries} times"
                    raise EnvError(f"retriever {self._url}: asked {times}, then gave up ({err}); is it up?") from err
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _ask(self, body: dict[str, Any], deadline: float) -> bytes:
        """Sends a request once; returns the body of a 200 answer."""
        aiohttp = optional("aiohttp")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,  # a small answer could unpack to a huge one
            )
        left = max(min(deadline - time.monotonic(), self._timeout_s), 0.01)
        try:
            async with (
                asyncio.timeout(left),
                self._session.post(self._url, json=body, allow_redirects=False) as response,
            ):
                answer = bytearray()
                async for part in response.content.iter_chunked(1 << 16):
                    answer += part
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise _Refused(f"retriever {self._url}: its answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        except TimeoutError as err:
            raise _Failed("no answer in time", hurried=left < 0.9 * min(self._timeout_s, self._limit_s)) from err
        except (aiohttp.ClientError, OSError) as err:
            raise _Failed(_reason(err), stale=isinstance(err, aiohttp.ServerDisconnectedError)) from err
        if response.status in RETRIED:
            raise _Failed(f"HTTP status {response.status}")
        if response.status != 200:
            raise _Refused(f"retriever {self._url}: HTTP status {response.status}, {excerpt(bytes(answer))}")
        return bytes(answer)

    def close(self) -> None:
        ended = asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        try:
            ended.result(5.0)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5.0)
            if not self._thread.is_alive():
                self.loop.close()

    async def _end(self) -> None:
        waiting, self._waiting = list(self._waiting), deque()
        for one in waiting:
            _settle(one.future, EnvError(f"retriever {self._url}: the client was closed"))
        for request in list(self._requests):
            request.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


def _settle(future: "asyncio.Future[list[Hit]]", outcome: list[Hit] | EnvError) -> None:
    if future.done():
        return
    if isinstance(outcome, EnvError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _reason(err: Exception) -> str:
    number = getattr(getattr(err, "os_error", err), "errno", None)
    text = os.strerror(number) if isinstance(number, int) and number > 0 else str(err) or type(err).__name__
    return " ".join(text.split())[:200]
