"""Clients that send nothing, too much, or what another site told a browser to send."""

import contextlib
import http.client
import json
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.core import web_server
from gigpo_jax.engines.endpoint import web
from gigpo_jax.engines.endpoint.server import Endpoint
from tests.engines.endpoint.serving import (
    HEADS,
    KEY,
    MAX_PROMPT,
    TOKENIZER,
    Watched,
    make_engine,
    post,
    serving,
)
from tests.processes import wait_until

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine() -> Iterator[Watched]:
    with make_engine() as made:
        yield made


def connect(endpoint: Endpoint, data: bytes = b"") -> socket.socket:
    host, port = endpoint.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(data)
    return connection


def is_closed(connection: socket.socket, timeout_s: float = 0.0) -> bool:
    """Whether the server closes a connection within a time."""
    connection.settimeout(timeout_s)
    try:
        return connection.recv(1) == b""
    except (TimeoutError, BlockingIOError):
        return False
    except ConnectionError:
        return True


def test_silent_connections_lock_nobody_out(
    engine: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web_server, "file_limit", lambda: 64)  # 16 of them may be unproven
    with serving(engine) as endpoint, contextlib.ExitStack() as stack:
        client = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=60)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        client.request("POST", CHAT, json.dumps(HEADS), headers)
        assert client.getresponse().read()
        silent = [
            stack.enter_context(connect(endpoint, b"" if number % 2 else b"POST /v1/ch"))
            for number in range(100)
        ]
        assert post(endpoint, CHAT, json.dumps(HEADS))[0] == 200
        wait_until(lambda: sum(map(is_closed, silent)) >= 84, 30)
        assert 84 <= sum(map(is_closed, silent)) <= 85
        # The connection that has shown the key is still open.
        client.request("POST", CHAT, json.dumps(HEADS), headers)
        assert client.getresponse().status == 200
        client.close()
    lines = [record for record in caplog.records if "without an accepted request" in record.message]
    assert len(lines) == 1


@pytest.mark.parametrize(
    "data", [b"", b"POST /v1/ch", b"GET /health HTTP/1.1\r\nHost: [::1]\r\n\r\n"]
)
def test_the_first_request_with_the_key_has_a_limit(
    engine: Watched, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "FIRST_REQUEST_S", 0.3)
    with serving(engine) as endpoint, connect(endpoint, data) as connection:
        while not is_closed(connection, 20.0):
            pass


def test_connections_that_cannot_be_accepted_are_one_line(
    engine: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    context = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(24, "Too many open files"),
    }
    with serving(engine) as endpoint:
        handler = endpoint._loop.get_exception_handler()
        assert handler is not None
        for _ in range(5):
            handler(endpoint._loop, context)
    assert [record.message for record in caplog.records] == [
        "connections cannot be accepted: Too many open files"
    ]


class SlowTokenizer:
    """A tokenizer that notes its threads and takes its time for one prompt."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.is_waiting = threading.Event()
        self.may_go_on = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(TOKENIZER, name)

    def render(self, messages: Any, tools: Any = ()) -> str:
        self.threads.add(threading.current_thread().name)
        if messages[0]["content"] == "key":
            self.is_waiting.set()
            assert self.may_go_on.wait(60)
        return TOKENIZER.render(messages, tools)

    def encode(self, text: str) -> list[int]:
        self.threads.add(threading.current_thread().name)
        return TOKENIZER.encode(text)


def test_a_prompt_is_rendered_and_encoded_outside_of_the_event_loop(engine: Watched) -> None:
    tokenizer = SlowTokenizer()
    slow = HEADS | {"messages": [{"role": "user", "content": "key"}]}
    with serving(engine, tokenizer) as endpoint:
        statuses: list[int] = []
        request = threading.Thread(
            target=lambda: statuses.append(post(endpoint, CHAT, json.dumps(slow))[0])
        )
        request.start()
        assert tokenizer.is_waiting.wait(60)
        with connect(endpoint, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as other:
            assert other.recv(1000).startswith(b"HTTP/1.1 200")
        tokenizer.may_go_on.set()
        request.join(60)
    assert statuses == [200]
    assert tokenizer.threads == {"endpoint-encoder_0"}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "door " * 800_000}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 6145}]}]},
        {"tools": [{"type": "function", "function": {"name": "go", "x": "a" * 6145}}]},
    ],
)
def test_a_prompt_of_far_too_many_characters_is_not_rendered(
    engine: Watched, fields: dict[str, Any]
) -> None:
    assert MAX_PROMPT == 96
    tokenizer = SlowTokenizer()
    with serving(engine, tokenizer) as endpoint:
        status, error = post(endpoint, CHAT, json.dumps(HEADS | fields))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "at most 64 for each token of config.sampling.max_prompt_tokens=96" in error["message"]
    assert tokenizer.threads == set()


@pytest.mark.parametrize(
    "head",
    [
        b"Host: a\r\nHost: b\r\nContent-Length: -5\r\n",
        b"Host: localhost\r\nX: " + b"y" * 70_000 + b"\r\n",
        b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_broken_requests_leave_no_traceback(
    engine: Watched, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(engine) as endpoint:
        request = b"POST /v1/sessions HTTP/1.1\r\n" + head + b"\r\n"
        with connect(endpoint, request) as connection:
            assert connection.recv(1000).split()[1] in (b"400", b"401")
        # What is left of the first request is done by now.
        with connect(endpoint, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as other:
            assert other.recv(1000).startswith(b"HTTP/1.1 200")
    assert not caplog.records


def test_the_address_of_a_session_is_that_of_the_checked_host(engine: Watched) -> None:
    """The target of a request can be a whole URL with another host."""
    body = b'{"task": "t"}'
    with serving(engine) as endpoint:
        request = (
            b"POST http://attacker.example/v1/sessions HTTP/1.1\r\nHost: localhost\r\n"
            + f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        with connect(endpoint, request) as connection:
            answer = connection.recv(10_000)
    assert b"attacker.example" not in answer
    assert b"http://localhost/sessions/" in answer


def test_refused_prompts_leave_no_memory_behind(engine: Watched) -> None:
    """Twenty prompts of 4 MB; one that was rendered and encoded took 1.7 GB."""
    body = json.dumps(HEADS | {"messages": [{"role": "user", "content": "door " * 800_000}]})

    def resident_bytes() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    with serving(engine) as endpoint:
        assert post(endpoint, CHAT, body)[0] == 400
        start = resident_bytes()
        for _ in range(20):
            assert post(endpoint, CHAT, body)[0] == 400
        growth = resident_bytes() - start
    # The allocator keeps some of it, up to about 180 MB, however many requests follow.
    assert growth < 300 * 2**20


@pytest.mark.parametrize("host", ["", "x:99999999", "attacker.example", "a b", "[::1"])
def test_a_foreign_host_gets_400_and_no_session(engine: Watched, host: str) -> None:
    with serving(engine) as endpoint:
        client = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=60)
        client.putrequest("POST", "/v1/sessions", skip_host=True)
        client.putheader("Host", host)
        client.putheader("Authorization", f"Bearer {KEY}")
        client.putheader("Content-Length", "13")
        client.endheaders(b'{"task": "t"}')
        assert client.getresponse().status == 400
        client.close()
        assert endpoint._sessions == {}
