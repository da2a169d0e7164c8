"""Hosts and content types that servers accept."""

import asyncio
from typing import Any

import pytest

from gigpo_jax.core.web_server import host_error, is_json, refuse_foreign_hosts


@pytest.mark.parametrize(
    ("header", "bound_host", "is_accepted"),
    [
        ("127.0.0.1:8000", "127.0.0.1", True),
        ("localhost:9000", "127.0.0.1", True),  # a tunnel has another port
        ("[::1]:8000", "::1", True),
        ("10.0.0.7:8000", "127.0.0.1", True),  # an address cannot be rebound
        ("Trainer-0:8000", "trainer-0", True),
        ("retriever.example:8000", "0.0.0.0", True),
        ("retriever.example:8000", "127.0.0.1", False),
        ("127.0.0.1.example", "127.0.0.1", False),
        ("x:99999999", "0.0.0.0", False),
        ("x:port", "0.0.0.0", False),
        ("x y", "0.0.0.0", False),
        ("x/y", "0.0.0.0", False),
        ("user@x", "0.0.0.0", False),
        ("[::1", "0.0.0.0", False),
        (":8000", "0.0.0.0", False),
        ("", "0.0.0.0", False),
        (None, "0.0.0.0", False),
    ],
)
def test_only_addresses_of_the_server_are_accepted(
    header: str | None, bound_host: str, is_accepted: bool
) -> None:
    assert (host_error(header, bound_host) == "") == is_accepted


def test_the_reason_names_the_flag_that_accepts_the_name() -> None:
    reason = host_error("Gpu1.cluster:8000", "10.0.0.7", "--host=")
    assert reason == (
        "Host: 'Gpu1.cluster:8000' is not served here; use 10.0.0.7, or start the server with "
        "--host=gpu1.cluster"
    )
    assert host_error("Gpu1.cluster:8000", "gpu1.cluster") == ""
    assert host_error("gpu1:8000", "127.0.0.1").endswith("; use 127.0.0.1 or localhost")


@pytest.mark.parametrize(
    ("content_type", "is_accepted"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        (None, False),
    ],
)
def test_only_json_is_json(content_type: str | None, is_accepted: bool) -> None:
    assert is_json(content_type) == is_accepted


@pytest.mark.parametrize(
    ("kind", "host", "origin", "answers"),
    [
        ("http", b"localhost:8000", None, ["app"]),
        ("http", b"localhost:8000", b"http://localhost:8000", ["app"]),
        ("websocket", b"127.0.0.1:8000", None, ["app"]),
        ("lifespan", None, None, ["app"]),
        ("http", b"attacker.example", None, [400, b"--host=attacker.example"]),
        ("http", None, None, [400, b"is no address"]),
        ("http", b"localhost:8000", b"https://attacker.example", [400, b"of another site"]),
        ("http", b"localhost:8000", b"null", [400, b"of another site"]),
        ("websocket", b"attacker.example", None, ["websocket.close"]),
        ("websocket", b"localhost:8000", b"https://attacker.example", ["websocket.close"]),
    ],
)
def test_an_application_sees_no_foreign_host_or_page(
    kind: str, host: bytes | None, origin: bytes | None, answers: list[Any]
) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "app"})

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("status") or message.get("body") or message["type"])

    headers = [(b"host", host), (b"origin", origin)]
    scope = {"type": kind, "headers": [header for header in headers if header[1]]}
    asyncio.run(refuse_foreign_hosts(app, "127.0.0.1", "--host=")(scope, receive, send))
    assert len(sent) == len(answers)
    for message, answer in zip(sent, answers, strict=True):
        assert message.endswith(answer) if isinstance(answer, bytes) else message == answer
