"""What our HTTP servers in front of an engine share: access, limits, errors, the listening socket.

Errors are OpenAI's JSON objects.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from gigpo_jax.core.web_server import ConnectionGuard, host_error, is_server_fault
from gigpo_jax.engines.access import is_authorized
from gigpo_jax.engines.endpoint.address import name_address_errors
from gigpo_jax.engines.endpoint.answers import error_answer
from gigpo_jax.engines.endpoint.requests import RequestError

MAX_HEADER_BYTES = 64 << 10
BODY_S = 60.0  # limit for the body of a request to arrive
FIRST_REQUEST_S = 10.0  # limit for the first request with the key of a connection
KEEPALIVE_S = 75.0  # limit between two requests of a connection
STOP_S = 5.0
# Addresses of all interfaces, and the address of this machine that clients reach them by.
LOCAL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}

log = logging.getLogger(__name__)
# Whoever reaches the port may send nonsense, also without the key.
log.addFilter(is_server_fault)
ErrorBody = Callable[[web.Request, RequestError], dict[str, Any]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """An aiohttp application at an address, behind a key.

    Attributes:
      application: Application, which gets its routes from the caller.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        *,
        max_body: int,
        error_body: ErrorBody = lambda request, error: error.as_json(),
    ) -> None:
        """Listens to nothing yet.

        Args:
          host, port: Address to listen on; port 0 is any free one.
          key: Bearer token of all paths but /health.
          max_body: Largest number of bytes of a body that is read at once.
          error_body: Function of a request and its error; returns the body of the answer.
        """
        self._host = host
        self._port = port
        self._key = key
        self._error_body = error_body
        self._guard = ConnectionGuard(log, lambda: FIRST_REQUEST_S)
        self.application = web.Application(
            client_max_size=max_body, middlewares=[self._check_and_answer]
        )

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        """Serves within the context.

        Yields:
          The address, such as http://127.0.0.1:8000.

        Raises:
          InputError: The address cannot be used.
        """
        # `handler_cancellation`: a client that goes away frees its slot in the engine.
        runner = web.AppRunner(
            self.application,
            access_log=None,
            logger=log,
            shutdown_timeout=STOP_S,
            handler_cancellation=True,
            max_field_size=MAX_HEADER_BYTES,
            keepalive_timeout=KEEPALIVE_S,
        )
        await runner.setup()
        try:
            self._guard.attach(runner.server)
            site = web.TCPSite(runner, self._host, self._port, backlog=self._guard.backlog)
            with name_address_errors(self._host, self._port):
                await site.start()
            port = runner.addresses[0][1]
            yield f"http://{LOCAL_ADDRESSES.get(self._host, self._host)}:{port}"
        finally:
            await runner.cleanup()

    @web.middleware
    async def _check_and_answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks Host and key, then calls the handler; clients of OpenAI can read every error."""
        # No check of the content type: pages of other sites do not have the key.
        try:
            message = host_error(request.headers.get("Host"), self._host, "--config.serve.host=")
            if message:
                raise RequestError(message)
            # Clients of Anthropic have a header of their own.
            own_key = request.headers.get("X-Api-Key")
            default = "" if own_key is None else f"Bearer {own_key}"
            header = request.headers.get("Authorization", default)
            # aiohttp decodes headers in this way; other bytes than UTF-8 come back unchanged.
            authorization = header.encode("utf-8", "surrogateescape")
            if request.path != "/health" and not is_authorized(authorization, self._key):
                raise RequestError(
                    "the key is missing or wrong", status=401, code="invalid_api_key"
                )
            if request.path != "/health":
                self._guard.accept(request.protocol)
            return await handler(request)
        # The client is gone, and an answer would fail as well.
        except ConnectionError:
            raise
        except web.HTTPNotFound:
            error = RequestError(
                f"{request.path}: not served; served are {', '.join(self._list_paths())}",
                status=404,
            )
        except Exception as err:
            error = error_answer(err)
        headers = {"Retry-After": "1"} if error.status in (429, 503) else None
        body = self._error_body(request, error)
        return web.json_response(body, status=error.status, headers=headers)

    def _list_paths(self) -> list[str]:
        """Returns the served paths, without the paths of sessions."""
        paths = {resource.canonical for resource in self.application.router.resources()}
        return sorted(path for path in paths if not path.startswith("/sessions/"))


async def read_bytes(request: web.Request) -> bytes:
    """Reads the body of a request.

    Raises:
      RequestError: The body is broken, or did not arrive in time.
    """
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError as err:
        raise RequestError(f"the request was not complete within {BODY_S:g} s", status=408) from err
    except web.RequestPayloadError as err:
        raise RequestError(f"the body is broken ({' '.join(str(err).split())})") from err


async def read_body(request: web.Request) -> dict[str, Any]:
    """Reads the JSON object of a request.

    Raises:
      RequestError: The body is something else, or did not arrive in time.
    """
    try:
        body = json.loads(await read_bytes(request))
    # RecursionError: JSON of thousands of nested lists.
    except (ValueError, RecursionError) as err:
        raise RequestError(f"the body is no JSON ({' '.join(str(err).split())})") from err
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    return body
