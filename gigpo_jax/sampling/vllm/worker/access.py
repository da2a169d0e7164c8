"""Keeps a vLLM server to those who have its key, development endpoints included.

Given to the server as `--middleware gigpo_jax.sampling.vllm.worker.access.RequireKey`. vLLM's own `--api-key` guards
only what begins with /v1 and the like; without this, whoever reaches the port could pause the server, load other
weights from the allowed folder and call any method of its workers. Adapters are loaded from where `adapter.py` has put
checked ones, whoever asks, and never from another path. Runs in the server's environment; the standard library is
enough.
"""

import hmac
import json
import os
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any

OPEN = ("/health", "/version")  # says that the server is up, and which release it is; nothing else

LOAD = "/v1/load_lora_adapter"
OTHER_LOAD = "/adapters"  # does the same under names of its own; nobody here needs it
BODY_LIMIT = 65536
FOLDER, STAGED = "GIGPO_WEIGHTS_DIR", "adapter."  # as in extension.py and adapter.py


class RequireKey:
    """Answers 401 unless the bearer token is VLLM_API_KEY; without that variable everything is refused."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        """Takes the application that it guards; the key is read once."""
        self._app = app
        self._expected = os.environ.get("VLLM_API_KEY", "")

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Lets a request through, or answers it."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", "")).rstrip("/")  # as routes see it
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN:
            await self._app(scope, receive, send)
        elif not self._known(scope):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await _answer(send, 401, "a bearer token is needed")
        elif path == OTHER_LOAD or path.startswith(OTHER_LOAD + "/"):
            await _answer(send, 403, f"adapters are loaded through {LOAD}")
        elif path == LOAD:
            body = await _body(receive)
            if may_load(body):
                await self._app(scope, _replay(body, receive), send)
            else:
                await _answer(send, 403, "adapters are loaded from where this server has put checked ones")
        else:
            await self._app(scope, receive, send)

    def _known(self, scope: dict[str, Any]) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        expected = f"Bearer {self._expected}".encode()
        return bool(self._expected) and hmac.compare_digest(given, expected)


def may_load(body: bytes) -> bool:
    """Whether a request to load an adapter names a folder that `vllm_adapter.stage` made, and nothing else."""
    root = os.environ.get(FOLDER, "")
    try:
        path = pathlib.Path(json.loads(body)["lora_path"])
        return bool(root) and path.resolve().parent == pathlib.Path(root).resolve() and path.name.startswith(STAGED)
    except (ValueError, KeyError, TypeError, OSError):
        return False


async def _body(receive: Any) -> bytes:
    """The whole body of a request; cut, and so no JSON, past the limit."""
    body, more = b"", True
    while more and len(body) <= BODY_LIMIT:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body if len(body) <= BODY_LIMIT else b""


def _replay(body: bytes, receive: Any) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Gives the application the body that was read, and then what comes after it."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> dict[str, Any]:
        return parts.pop() if parts else await receive()

    return again


async def _answer(send: Any, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
