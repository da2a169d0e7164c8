"""Keeps a vLLM server to those who have its key, development endpoints included.

Given to the server as `--middleware gigpo_jax.sampling.vllm_access.RequireKey`. vLLM's own `--api-key` guards only what
begins with /v1 and the like; without this, whoever reaches the port could pause the server, load other weights from the
allowed folder and call any method of its workers. Runs in the server's environment; the standard library is enough.
"""

import hmac
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

OPEN = ("/health", "/version")  # says that the server is up, and which release it is; nothing else


class RequireKey:
    """Answers 401 unless the bearer token is VLLM_API_KEY; without that variable everything is refused."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        """Takes the application that it guards; the key is read once."""
        self._app = app
        self._expected = os.environ.get("VLLM_API_KEY", "")

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Lets a request through, or answers it."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN or self._known(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            body = json.dumps({"error": "a bearer token is needed"}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _known(self, scope: dict[str, Any]) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        expected = f"Bearer {self._expected}".encode()
        return bool(self._expected) and hmac.compare_digest(given, expected)
