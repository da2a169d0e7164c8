"""Every endpoint of a server but two wants the key."""

import asyncio
from typing import Any

import pytest

from gigpo_jax.engines.access import RequireKey


def status(path: str, authorization: str | None, kind: str = "http") -> int:
    """What a request gets: 200 from the application behind, or the refusal."""
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"status": 200})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [] if authorization is None else [(b"authorization", authorization.encode())]
    asyncio.run(
        RequireKey(application)({"type": kind, "path": path, "headers": headers}, None, send)
    )
    return sent[0].get("status") or sent[0]["code"]


@pytest.mark.parametrize(
    "path", ["/pause", "/collective_rpc", "/v1/completions", "/", "/health/x", "/versions", "/docs"]
)
def test_only_the_key_opens(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    assert status(path, "Bearer sesame") == 200
    for wrong in (None, "", "Bearer ", "Bearer sesam", "sesame", "Bearer sésame"):
        assert status(path, wrong) == 401
    assert status(path, "Bearer wrong", "websocket") == 1008
    assert status(path, "Bearer sesame", "websocket") == 200


def test_without_a_key_nothing_opens_but_health_and_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert [status(path, None) for path in ("/health", "/version", "/pause")] == [200, 200, 401]
    assert status("/pause", "Bearer ") == 401
    assert status("", None, "lifespan") == 200  # the server's own start and end
