"""Servers in threads: the retriever's, and one that answers whatever a test says."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web

from gigpo_jax.envs.search.retrieval.retriever import Retriever
from gigpo_jax.envs.search.retrieval.service import Service, serve_requests


@contextlib.contextmanager
def serving(
    retriever: Retriever, bodies: list[bytes] | None = None, **options: int
) -> Iterator[str]:
    """The URL of a retriever's server on a free port of loopback; `bodies` gets every body."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    state: dict = {}

    @web.middleware
    async def note(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.Response]]
    ) -> web.Response:
        if bodies is not None:
            bodies.append(await request.read())
        return await handler(request)

    async def run() -> None:
        started = loop.create_future()
        service = Service(retriever, {"kind": "test"}, **options)
        service.app.middlewares.append(note)
        task = loop.create_task(serve_requests(service, "127.0.0.1", 0, started))
        state["task"] = task
        state["port"] = await started
        ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{state['port']}"
    finally:
        loop.call_soon_threadsafe(state["task"].cancel)
        thread.join(30)
        loop.close()


@contextlib.contextmanager
def answering(response: Callable[[int], bytes | None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends bytes as they are: `response(n)` for the n-th request.

    None: it never answers that request.     Yields its URL and the requests that came, each connection serving one.
    """
    requests: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    open_connections: list[socket.socket] = []

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            head, _, body = request.partition(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if b"content-length" in line.lower()
            )
            while len(body) < length:
                body += connection.recv(65536)
            requests.append(body)
            answer = response(len(requests) - 1)
            if answer is None:
                open_connections.append(connection)
            else:
                connection.sendall(answer)
                connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        for connection in open_connections:
            connection.close()


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    """A complete HTTP/1.1 answer."""
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
