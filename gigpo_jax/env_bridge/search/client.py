"""A client of the `/retrieve` protocol, on the standard library alone.

Environments step synchronously, so a request carries the queries of one call; what runs at the same time is one request
for each worker process (`env.workers`). Connections are kept open. A retriever that fails is asked again with growing
pauses until a limit; from then on, until it answers again, every search gets a single short try, so that many waiting
episodes are aborted in seconds rather than each after the whole limit.
"""

import http.client
import json
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from gigpo_jax.env_bridge.search.retriever import MAX_QUERY_CHARS, Document, Hit
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.errors import InputError

RETRIED = (500, 502, 503, 504)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
SHORT_TRY_S = 2.0  # of a search while the retriever is known to be down
MAX_ANSWER_BYTES = 64 << 20
_EXCERPT = 80  # characters of an answer that are shown in a message


class _Failed(Exception):
    """One request failed in a way that may pass."""


class RetrieverClient:
    """A `Retriever` behind a URL."""

    def __init__(self, url: str, *, timeout_s: float = 10.0, limit_s: float = 45.0) -> None:
        """Connects to nothing yet.

        Args:
          url: http(s)://host:port, with a path if it is not /retrieve.
          timeout_s: of one request, s.
          limit_s: of a search with all its retries, s.

        Raises:
          InputError: the URL cannot be used.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as err:
            raise InputError(f"env.options.url={url!r}: {err}") from err
        if parts.scheme not in ("http", "https") or not host:
            raise InputError(f"env.options.url={url!r}: give it like http://127.0.0.1:8000")
        self._url, self._host, self._port = url, host, port
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._path = parts.path if parts.path not in ("", "/") else "/retrieve"
        self._timeout_s, self._limit_s = timeout_s, limit_s
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._down = False

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """As `Retriever.search`.

        Raises:
          EnvError: the retriever did not answer within the limit, refused the request, or answered nonsense.
        """
        cut = [query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode() for query in queries]
        if not cut:
            return []
        body = json.dumps({"queries": cut, "topk": topk, "return_scores": True}).encode()
        deadline = time.monotonic() + (SHORT_TRY_S if self._down else self._limit_s)
        pause, tries = FIRST_PAUSE_S, 0
        while True:
            tries += 1
            try:
                answer = self._ask(body, deadline)
                self._down = False
                return self._hits(answer, len(cut))
            except _Failed as err:
                if self._down or time.monotonic() + pause >= deadline:
                    self._down = True
                    times = "once" if tries == 1 else f"{tries} times"
                    raise EnvError(f"retriever {self._url}: asked {times}, then gave up ({err}); is it up?") from err
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def close(self) -> None:
        """Closes idle connections; later searches open new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(self, body: bytes, deadline: float) -> bytes:
        """One request; the body of a 200 answer."""
        until = min(deadline, time.monotonic() + self._timeout_s)
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is not None:
                try:
                    return self._exchange(connection, body, until)
                except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                    connection.close()  # the server had closed an idle connection: not its failure
            connection = self._connect(self._host, self._port, timeout=self._timeout_s)
            return self._exchange(connection, body, until)
        except (OSError, http.client.HTTPException) as err:
            if connection is not None:
                connection.close()
            what = "no answer in time" if isinstance(err, TimeoutError) else str(err) or type(err).__name__
            raise _Failed(" ".join(what.split())[:200]) from err
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes, until: float) -> bytes:
        connection.timeout = max(until - time.monotonic(), 0.01)
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        parts, size = [], 0
        while part := response.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                connection.close()
                raise EnvError(f"retriever {self._url}: its answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
            if time.monotonic() > until:
                raise TimeoutError
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        answer = b"".join(parts)
        if response.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        if response.status in RETRIED:
            raise _Failed(f"HTTP status {response.status}")
        if response.status != 200:
            raise EnvError(f"retriever {self._url}: HTTP status {response.status}, {_excerpt(answer)}")
        return answer

    def _hits(self, answer: bytes, count: int) -> list[list[Hit]]:
        """Reads an answer that claims to be one."""
        try:
            result = json.loads(answer.decode("utf-8"))["result"]
            if not isinstance(result, list) or len(result) != count:
                raise ValueError(f"no list of {count} results")
            return [[_hit(found) for found in row] for row in result]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            said = f"{type(err).__name__}: {' '.join(str(err).split())[:200]}"
            raise EnvError(
                f"retriever {self._url}: its answer is not of the /retrieve protocol ({said}): {_excerpt(answer)}"
            ) from err


def _hit(found: Any) -> Hit:
    """`{"document": {..}, "score": ..}`, or the document alone."""
    document = found.get("document", found)
    contents = document["contents"]
    if not isinstance(contents, str):
        raise TypeError(f"contents is a {type(contents).__name__}")
    return Hit(Document(str(document.get("id", "")), contents), float(found.get("score") or 0.0))


def _excerpt(answer: bytes) -> str:
    text = " ".join(answer[: 4 * _EXCERPT].decode("utf-8", "replace").split())
    return repr(text[:_EXCERPT]) if text else "an empty answer"
