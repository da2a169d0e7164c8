"""Client of one server: every call has a time limit and ends in an answer or an error.

Each kind of server has a class of its own, which says how it is described, asked and given weights.
"""

import asyncio
import json
import socket
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.remote.protocol import Limits, ServerFault
from gigpo_jax.engines.vllm.launch import ServerProcess

QUICK_S = 30.0  # limit of calls that a working server answers at once
SILENT_HOST_S = 60  # a connection fails when the other host's system is silent for this time
PROBES = 4  # of a connection without traffic, in this time


@dataclass(frozen=True)
class PushedWeights:
    """The weights of one push, and the probe that verifies them.

    Attributes:
      label: Name of the version on the servers.
      name: File or adapter folder in the weights folder.
      checksum: Checksum of its tensors.
      probe: [P], token ids of the probe prompt.
      expected: [P - 1] f32, nats, the learner's log-probabilities of them; may still be computed.
      tolerance: Largest accepted mean absolute difference, nats.
      base: Checksum of the model's folder for an adapter; "" if the file has all weights.
      inflight: Whether running requests go on with these weights; False: they finish first.
    """

    label: str
    name: str
    checksum: str
    probe: tuple[int, ...]
    expected: Any
    tolerance: float
    base: str = ""
    inflight: bool = False


class Server:
    """Client of one server; `ServerPool` decides when it talks.

    Attributes:
      url: Address, such as http://127.0.0.1:8123.
      process: Process of the server, if this run started it.
      state: State; only "ready" servers get requests; "lost" is final.
      load: Number of requests under way.
      failures: Number of recoveries since the last response.
      restarts: Number of restarts so far.
      reason: Reason for which it is not ready.
      push_report: Report of the last push.
      recovery: Task that makes it ready.
    """

    key_name = ""  # the environment variable with the bearer token
    fix = ""  # for an address with another program

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        limits: Limits,
        process: ServerProcess | None = None,
    ):
        """Stores the address and connects to nothing yet; the HTTP session has the key."""
        self.url = url.rstrip("/")
        self.process = process
        self._session = session
        self._limits = limits
        self.state: Literal["recovering", "ready", "lost"] = "recovering"
        self.load = 0
        self.failures = 0
        self.restarts = 0
        self.reason = "not started"
        self.push_report: dict[str, float] = {}
        self.recovery: asyncio.Task[None] | None = None

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        limit_s: float = QUICK_S,
    ) -> Any:
        """Makes one call, with JSON or bytes, and returns parsed JSON, or text of other types.

        Raises:
          InputError: The server refuses the request (400, 413, 422) or the key (401, 403).
          ServerFault: The call failed in another way.
        """
        # No redirects: they would take the key to another address.
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._session.request(
                method,
                self.url + path,
                json=body,
                data=data,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                status = response.status
                answer = await response.text()
                if answer and response.content_type == "application/json":
                    answer = json.loads(answer)
        except TimeoutError as err:
            raise ServerFault(f"{path}: no answer within {limit_s:g} s") from err
        except (aiohttp.ClientError, OSError, ValueError) as err:
            raise ServerFault(f"{path}: {type(err).__name__}: {err}") from err
        if status in (401, 403):
            raise InputError(
                f"refuses the key (status {status})",
                key=self.url,
                fix=f"set {self.key_name} to the server's",
            )
        if status in (400, 413, 422):
            raise InputError(f"refuses the request: {summarise_answer(answer)}", key=self.url)
        if status != 200:
            raise ServerFault(f"{path}: status {status}: {summarise_answer(answer)}")
        return answer

    async def check_health(self) -> None:
        """Raises ServerFault unless the server is up."""
        await self.call("GET", "/health")

    async def weights_label(self) -> str:
        """Returns the label of the weights that the server has."""
        answer = await self.call("GET", "/weight_info")
        return str(answer.get("weight_version", "")) if isinstance(answer, dict) else ""

    async def generate(self, body: dict[str, Any]) -> Any:
        """Requests one response; see `protocol` for request and answer."""
        path = "/inference/v1/generate"
        return await self.call("POST", path, body, limit_s=self._limits.request_s)

    def end_session(self, session: tuple[int, int]) -> None:
        """Ends a session; here it does nothing."""

    async def release(self) -> None:
        """Ends the pause of an unfinished push; here nothing."""

    async def check(
        self, expected: dict[str, Any], *, max_length: int, rank: int, base: str
    ) -> None:
        """Checks the server's model and settings.

        Args:
          expected: Architecture of the learner, "tokenizer" fingerprint and "dtype".
          max_length: Largest number of tokens of prompt and response together.
          rank: Rank of the adapter, 0 if all weights are trained.
          base: Checksum of the model's folder, as in `PushedWeights`.

        Raises:
          InputError: This client cannot use the server, or a value differs.
        """
        raise NotImplementedError

    async def push(self, weights: PushedWeights) -> dict[str, float]:
        """Replaces the weights and verifies them with the probe.

        Returns:
          Bytes and seconds of the load, and the probe's mean absolute difference in nats.

        Raises:
          ServerFault: The push failed; the server must not sample until a push succeeds.
        """
        raise NotImplementedError


def open_socket(address: Any) -> socket.socket:
    """Opens a socket that notices that the other host is gone, for aiohttp's `socket_factory`.

    A host without power or network ends no connection, and `Limits.request_s` may be an hour.
    """
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    interval_s = SILENT_HOST_S // PROBES
    options = {
        "TCP_KEEPIDLE": interval_s,
        "TCP_KEEPINTVL": interval_s,
        "TCP_KEEPCNT": PROBES - 1,
        # The same limit where an answer to sent bytes is due; in ms.
        "TCP_USER_TIMEOUT": SILENT_HOST_S * 1000,
    }
    for name, value in options.items():
        # Linux has all of them.
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened


def summarise_answer(answer: Any) -> str:
    """Returns an answer or its error message in one line of at most 300 characters."""
    message = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        message = answer["error"].get("message")
    return " ".join(str(message or answer).split())[:300] or "nothing"
