"""Key checks of servers, and the middleware that protects a vLLM server.

`--middleware gigpo_jax.engines.access.RequireKey` adds it to a server. vLLM's own `--api-key`
covers only paths that begin with /v1, /v2, /inference or /cohere (release 0.32): the development
endpoints that a push needs, such as /pause and /collective_rpc, stay open with it. This module
needs only the standard library.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

# They tell nothing about the model or its requests, and a health check need not have the key.
OPEN_PATHS = ("/health", "/version")


class RequireKey:
    """ASGI middleware that answers 401 without the bearer token of VLLM_API_KEY.

    If that variable is not set, it answers 401 to everything. /health and /version need no key.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        """Wraps an application and reads the key."""
        self._app = app
        self._key = os.environ.get("VLLM_API_KEY", "")

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Passes a request on, or refuses it."""
        if self._is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            # 1008 is a violation of the server's policy (RFC 6455, section 7.4.1).
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send(
                {"type": "http.response.body", "body": b"Authorization: Bearer KEY is required"}
            )

    def _is_allowed(self, scope: dict[str, Any]) -> bool:
        # The third type, "lifespan", is the server's own start and end; no client can send it.
        if scope["type"] not in ("http", "websocket"):
            return True
        if scope["path"] in OPEN_PATHS:
            return True
        headers = scope["headers"]
        authorization = next((value for name, value in headers if name == b"authorization"), b"")
        return is_authorized(authorization, self._key)


def is_authorized(authorization: bytes, key: str) -> bool:
    """Returns whether an Authorization header has the key; an empty key opens nothing."""
    if not key:
        return False
    # The time of the comparison must not tell how much of the key is right.
    return hmac.compare_digest(authorization, f"Bearer {key}".encode())
