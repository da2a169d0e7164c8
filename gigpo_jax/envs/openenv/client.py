"""A session with an OpenEnv server: its schema over HTTP, its episodes over a WebSocket.

Imported on first use; it needs aiohttp, not the package openenv.
"""

import asyncio
import contextlib
import json
import time
from typing import Any

import aiohttp

from gigpo_jax.env_bridge.types import EnvError, StepError

MAX_BYTES = 1 << 24  # of a message of the server
_RETRY_S = 0.5
_CLOSE_S = 2.0  # for the server's part of closing


class ConnectionLost(EnvError):
    """The server has closed the connection, or there is none."""


class SessionsTaken(EnvError):
    """The server plays as many episodes as it can."""


class ActionRefused(EnvError):
    """The server's own check of an action has failed, and nothing happened."""


async def fetch_json(url: str, limit_s: float, body: dict[str, Any] | None = None) -> Any:
    """Fetches a JSON document: POST with a body, else GET.

    Raises EnvError without an answer of that kind in time.
    """
    limit = aiohttp.ClientTimeout(total=limit_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as http,
            http.request("GET" if body is None else "POST", url, json=body) as response,
        ):
            content = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                content += chunk
                if len(content) > MAX_BYTES:
                    raise EnvError(f"{url}: more than {MAX_BYTES:,} bytes")
            if response.status != 200:
                raise EnvError(f"{url}: HTTP status {response.status}")
            return json.loads(content)
    except TimeoutError as err:
        raise EnvError(f"{url}: no answer within {limit_s:g} s") from err
    except (aiohttp.ClientError, OSError) as err:
        raise ConnectionLost(f"{url}: {type(err).__name__}: {err}") from err
    except (ValueError, RecursionError) as err:
        raise EnvError(f"{url}: the answer is not JSON") from err


class ServerSession:
    """A session, for which the server keeps an environment of its own."""

    def __init__(self, url: str, limit_s: float) -> None:
        """Remembers the address.

        Args:
          url: URL of the server.
          limit_s: Time limit of each answer, s.
        """
        self._url = url
        self._limit_s = limit_s
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._messages: asyncio.Queue[aiohttp.WSMessage | None] = asyncio.Queue()

    async def start_episode(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Resets the environment; returns the data of the observation.

        A connection that was dropped since the last episode is opened again.
        """
        if self._socket is not None:
            try:
                return await self.ask("reset", arguments)
            except ConnectionLost:
                await self.close()
        deadline = time.monotonic() + self._limit_s
        while True:
            await self._open()
            try:
                return await self.ask("reset", arguments)
            except SessionsTaken:
                await self.close()
                # The server may not have noticed yet that another worker has ended.
                if time.monotonic() + _RETRY_S > deadline:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Sends a message of the kind "reset" or "step"; returns the data of the answer.

        Raises:
          EnvError: it failed; after all but `ActionRefused` the session's state is unknown.
        """
        assert self._socket is not None
        # A server without a free session closes after a message that says so, which is read below.
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            await self._socket.send_json({"type": kind, "data": data})
        try:
            message = await asyncio.wait_for(self._messages.get(), self._limit_s)
        except TimeoutError as err:
            # Its late answer would be taken for the answer to the next message.
            await self.close()
            raise StepError(f"no answer within {self._limit_s:g} s ({kind})") from err
        if message is None:
            raise ConnectionLost(f"the server has closed the connection ({kind})")
        return _read_answer(message)

    async def close(self) -> None:
        """Ends the session."""
        reader = self._reader
        socket = self._socket
        http = self._http
        self._reader = None
        self._socket = None
        self._http = None
        if socket is not None and reader is not None:
            try:
                await asyncio.wait_for(socket.send_json({"type": "close"}), _CLOSE_S)
                # The server ends the session before it closes the connection.
                await asyncio.wait_for(reader, _CLOSE_S)
            except (TimeoutError, ConnectionError, aiohttp.ClientError):
                reader.cancel()
        if http is not None:
            await http.close()

    async def _open(self) -> None:
        self._messages = asyncio.Queue()
        self._http = aiohttp.ClientSession()
        try:
            call = self._http.ws_connect(f"{self._url}/ws", max_msg_size=MAX_BYTES)
            self._socket = await asyncio.wait_for(call, self._limit_s)
        except TimeoutError as err:
            await self.close()
            raise ConnectionLost(f"no connection within {self._limit_s:g} s") from err
        except (aiohttp.ClientError, OSError, ValueError) as err:
            await self.close()
            raise ConnectionLost(f"{type(err).__name__}: {err}") from err
        # Always reading: only so are the server's pings answered while the policy thinks.
        self._reader = asyncio.create_task(_read_messages(self._socket, self._messages))


async def _read_messages(
    socket: aiohttp.ClientWebSocketResponse, messages: "asyncio.Queue[aiohttp.WSMessage | None]"
) -> None:
    async for message in socket:
        await messages.put(message)
    await messages.put(None)


def _read_answer(message: aiohttp.WSMessage) -> dict[str, Any]:
    """The data of an observation.

    Raises EnvError for any other answer.
    """
    if message.type != aiohttp.WSMsgType.TEXT:
        raise StepError(f"the server sent no text ({message.data!r:.200})")
    try:
        answer = json.loads(message.data)
    except (ValueError, RecursionError) as err:
        raise StepError("the answer is not JSON") from err
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict):
        raise StepError("the answer has no data")
    if answer.get("type") == "error":
        code = data.get("code")
        text = str(data.get("message"))
        if code == "CAPACITY_REACHED":
            raise SessionsTaken(
                f"the server has no free session ({text}); start it with more "
                "(max_concurrent_envs), or lower engine.slots"
            )
        if code == "VALIDATION_ERROR":
            raise ActionRefused(_describe_errors(data))
        raise StepError(f"the server failed: {text} ({code})")
    if answer.get("type") != "observation":
        raise StepError(f"an answer of the type {answer.get('type')!r:.200}")
    return data


def _describe_errors(data: dict[str, Any]) -> str:
    """The first error of a check, in one line."""
    errors = data.get("errors")
    first_error = errors[0] if isinstance(errors, list) and errors else None
    if not isinstance(first_error, dict):
        return str(data.get("message"))
    return str(first_error.get("msg"))
