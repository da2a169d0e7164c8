"""Protection of the package's HTTP servers: idle connections, foreign Hosts, cross-site posts."""

import asyncio
import ipaddress
import logging
import resource
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

LOG_INTERVAL_S = 60.0
MAX_UNPROVEN = 512  # connections without an accepted request
WILDCARDS = ("0.0.0.0", "::", "")


def host_error(header: str | None, bound_host: str, flag: str = "") -> str:
    """Returns the reason to refuse a Host header.

    "" for an address of this server. A page of another site can reach a server on loopback through
    a name of its own (DNS rebinding); the Host header then has that name. IP addresses cannot be
    rebound and are accepted, and so is every port: a tunnel may have another one. A server on all
    interfaces accepts every well-formed name.

    Args:
      header: Value of the header; None: the request has none.
      bound_host: Address that the server listens on.
      flag: Start of the flag that chooses this address, which the reason names; "": there is none.
    """
    try:
        address = urlsplit(f"//{header or ''}")
        name = address.hostname
        _ = address.port  # raises ValueError outside of 0 to 65535
    except ValueError:
        name = None
    # The netloc differs if the header has a path, a query or characters that urlsplit drops: such a
    # header is not a host and a port.
    if not name or not header or address.netloc != header or "@" in header or " " in header:
        return f"Host: {header!r} is no address"
    if bound_host in WILDCARDS or name in ("localhost", bound_host.lower()):
        return ""
    try:
        # Raises for a name; one that is not the server's own could be rebound, so it is refused
        # below.
        ipaddress.ip_address(name)
    except ValueError:
        fix = f", or start the server with {flag}{name}" if flag else " or localhost"
        return f"Host: {header!r} is not served here; use {bound_host}{fix}"
    return ""


def refuse_foreign_hosts(app: Any, bound_host: str, flag: str) -> Any:
    """Returns an ASGI application that checks Host and Origin before `app` sees a request.

    A browser names the page that sends a form or opens a websocket as the Origin; other programs
    send none.

    Args:
      app: ASGI application.
      bound_host: Address that the server listens on.
      flag: Start of the flag that chooses this address; "": there is none.
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        error = ""
        if scope["type"] in ("http", "websocket"):
            # latin-1 decodes every byte, so that a malformed header cannot raise here.
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            host = headers.get(b"host")
            error = host_error(host, bound_host, flag)
            origin = headers.get(b"origin")
            # Compared with the Host header, not with the bound address: a tunnel changes both
            # alike.
            if not error and origin is not None and urlsplit(origin).netloc != host:
                error = f"Origin: {origin!r} is a page of another site"
        if not error:
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            # ASGI: the connect event comes before any answer.
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # a handshake refused: status 403
        else:
            start = {"type": "http.response.start", "status": 400}
            await send(start | {"headers": [(b"content-type", b"text/plain; charset=utf-8")]})
            await send({"type": "http.response.body", "body": error.encode()})

    return answer


def is_json(content_type: str | None) -> bool:
    """Returns whether a Content-Type is JSON, which a page of another site cannot post unasked."""
    media_type = (content_type or "").partition(";")[0]
    return media_type.strip().lower() == "application/json"


def file_limit() -> int:
    """Returns how many files and connections this process may open."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # -1 on Linux, which is no number to divide by.
    if soft_limit == resource.RLIM_INFINITY:
        return 1 << 20
    return soft_limit


def is_server_fault(record: logging.LogRecord) -> bool:
    """Tests whether an aiohttp record is a fault of the server and no mistake of a client.

    Mistakes of clients are broken requests or bodies and closed connections. As the filter of a
    server's logger it keeps their tracebacks out of the log.
    """
    from aiohttp.http_exceptions import HttpProcessingError
    from aiohttp.web import RequestPayloadError

    error = record.exc_info[1] if record.exc_info else None
    client_errors = (HttpProcessingError, RequestPayloadError, ConnectionError)
    return not isinstance(error, client_errors)


class ConnectionGuard:
    """Limits an aiohttp server's connections without an accepted request.

    Such a connection is closed after some time, and the oldest of them is closed when there are
    too many: a client that sends nothing, or half of a head, keeps nobody out. aiohttp's
    `keepalive_timeout` limits the time between requests.

    Attributes:
      backlog: Number of connections that the server accepts at once; for `create_server`.
    """

    def __init__(self, log: logging.Logger, timeout_s: Callable[[], float]) -> None:
        """Guards no server yet.

        Args:
          log: Logger of the server, which gets a line a minute at most.
          timeout_s: Function that returns the limit for the first accepted request, s.
        """
        self._log = log
        self._timeout_s = timeout_s
        # A quarter of the open files: the others are for accepted connections and the program's own
        # files. At least 4, where the limit is very low.
        self._max_unproven = max(4, min(MAX_UNPROVEN, file_limit() // 4))
        # A burst is accepted before the guard can close a connection: it must fit as well.
        self.backlog = max(1, self._max_unproven // 4)
        self._timers: dict[Any, asyncio.TimerHandle] = {}  # the oldest connection first
        self._closed = 0
        self._last_log = -LOG_INTERVAL_S

    def attach(self, server: Any) -> None:
        """Watches the connections of an `aiohttp.web.Server`."""
        # aiohttp has no hook for connections, only for requests. So these two methods of the
        # instance are replaced.
        connection_made = server.connection_made
        connection_lost = server.connection_lost

        def watch(connection: Any, transport: asyncio.Transport) -> None:
            connection_made(connection, transport)
            self._watch(connection)

        def forget(connection: Any, error: BaseException | None = None) -> None:
            self.accept(connection)
            connection_lost(connection, error)

        server.connection_made = watch
        server.connection_lost = forget
        asyncio.get_running_loop().set_exception_handler(self._handle_loop_error)

    def accept(self, connection: Any) -> None:
        """Ends the watch of a connection, whose request was accepted."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _watch(self, connection: Any) -> None:
        if len(self._timers) >= self._max_unproven:
            self._close(next(iter(self._timers)))
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(self._timeout_s(), self._close, connection)

    def _close(self, connection: Any) -> None:
        self.accept(connection)
        connection.force_close()
        self._closed += 1
        self._log_rarely(f"closed {self._closed} connections without an accepted request so far")

    def _handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs connections that cannot be accepted as one line in place of their tracebacks."""
        error = context.get("exception")
        if isinstance(error, OSError) and "accept" in context.get("message", ""):
            self._log_rarely(f"connections cannot be accepted: {error.strerror}")
        else:
            loop.default_exception_handler(context)

    def _log_rarely(self, message: str) -> None:
        now = time.monotonic()
        if now - self._last_log >= LOG_INTERVAL_S:
            self._last_log = now
            self._log.warning(message)
