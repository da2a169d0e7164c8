"""Middleware of a vLLM server: every endpoint but /health and /version requires the key.

The server gets it as `--middleware gigpo_jax.sampling.vllm.worker.access.RequireKey`. vLLM's own `--api-key` covers
only paths that begin with /v1, /v2, /inference or /cohere (release 0.32); the development endpoints that a push needs,
such as /pause and /collective_rpc, stay open with it. It needs the standard library alone.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

OPEN = ("/health", "/version")


class RequireKey:
    """ASGI middleware that answers 401 unless the bearer token is VLLM_API_KEY; without that variable, always."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        """Wraps an application; the key is read once."""
        self._app = app
        self._key = os.environ.get("VLLM_API_KEY", "")

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN or self._authorized(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"Authorization: Bearer KEY is required"})

    def _authorized(self, scope: dict[str, Any]) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return authorized(given, self._key)


def authorized(given: bytes, key: str) -> bool:
    """Whether the value of an Authorization header has the key; an empty key opens nothing."""
    return bool(key) and hmac.compare_digest(given, f"Bearer {key}".encode())
