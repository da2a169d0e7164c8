"""One vLLM server over HTTP: every call has a time limit and ends in an answer or one of two errors."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.vllm.launch import ServerProcess
from gigpo_jax.sampling.vllm.protocol import KNOWN_RELEASE, LOADING, Limits, ServerFault, probe_request, read_probe

QUICK_S = 30.0  # limit of calls that a working server answers at once
HINT = "start one with launch/vllm_sidecar.sh"


@dataclass(frozen=True)
class Weights:
    """One push.

    Attributes:
      label: name of the version on the servers.
      name: of the file or adapter folder in the weights folder.
      checksum: of its tensors.
      probe: [P] token ids of the probe prompt.
      expected: [P - 1] f32, nats, the learner's log-probabilities of them.
      tolerance: nats, largest accepted mean absolute difference.
      base: for an adapter the checksum of the model's folder; "" if the file has all weights.
    """

    label: str
    name: str
    checksum: str
    probe: tuple[int, ...]
    expected: np.ndarray
    tolerance: float
    base: str = ""


class Server:
    """Talks to one server; `ServerPool` decides when.

    Attributes:
      url: such as http://127.0.0.1:8123.
      process: if this run started it.
      adapter: name of the adapter that it samples with; "" for none.
      state: requests go to "ready" servers alone; "lost" is final.
      load: requests under way.
      failures: recoveries since the last response.
      restarts: so far.
      reason: why it is not ready.
      pushed: report of the last push.
      recovery: the task that makes it ready.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, limits: Limits, process: ServerProcess | None = None):
        """Connects to nothing yet; the session carries the key."""
        self.url, self.process, self._session, self._limits = url.rstrip("/"), process, session, limits
        self.adapter = ""
        self.state: Literal["recovering", "ready", "lost"] = "recovering"
        self.load = self.failures = self.restarts = self._adapters = 0
        self.reason = "not started"
        self.pushed: dict[str, float] = {}
        self.recovery: asyncio.Task[None] | None = None

    async def call(self, method: str, path: str, body: Any = None, *, limit_s: float = QUICK_S) -> Any:
        """Makes one call and returns the parsed JSON, or the text of another content type.

        Raises:
          InputError: the server refuses the request (400, 413, 422) or the key (401, 403).
          ServerFault: any other failure.
        """
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=timeout, allow_redirects=False
            ) as answer:
                status, found = answer.status, await answer.text()
                if found and answer.content_type == "application/json":
                    found = json.loads(found)
        except TimeoutError as err:
            raise ServerFault(f"{path}: no answer within {limit_s:g} s") from err
        except (aiohttp.ClientError, OSError, ValueError) as err:
            raise ServerFault(f"{path}: {type(err).__name__}: {err}") from err
        if status in (401, 403):
            raise InputError(f"{self.url}: refuses the key (status {status}); set VLLM_API_KEY to the server's")
        if status in (400, 413, 422):
            raise InputError(f"{self.url}: refuses the request: {_shortened(found)}")
        if status != 200:
            raise ServerFault(f"{path}: status {status}: {_shortened(found)}")
        return found

    async def generate(self, body: dict[str, Any]) -> Any:
        """Asks for one response, from the same adapter throughout; see `protocol` for request and answer."""
        adapter = self.adapter
        body = body | {"model": adapter} if adapter else body
        answer = await self.call("POST", "/inference/v1/generate", body, limit_s=self._limits.request_s)
        if self.adapter != adapter:
            raise ServerFault("the adapter changed during the request")
        return answer

    async def healthy(self) -> None:
        """Raises ServerFault unless the server is up."""
        await self.call("GET", "/health")

    async def label(self) -> str:
        """Returns the label of the weights that the server has."""
        answer = await self.call("GET", "/weight_info")
        return str(answer.get("weight_version", "")) if isinstance(answer, dict) else ""

    async def describe(self) -> dict[str, Any]:
        """Checks the release and returns what the first worker says of itself.

        Raises:
          InputError: it is not a server that this client can use.
        """
        answer = await self.call("GET", "/version")
        release = answer.get("version") if isinstance(answer, dict) else None
        if not str(release).startswith(KNOWN_RELEASE):
            raise InputError(f"{self.url}: not vLLM {KNOWN_RELEASE}x (/version says {_shortened(answer)}); {HINT}")
        try:
            return (await self._workers("gigpo_describe"))[0]
        except ServerFault as err:
            raise InputError(f"{self.url}: the worker extension is missing ({err}); {HINT}") from err

    async def push(self, weights: Weights) -> dict[str, float]:
        """Replaces the weights and verifies them with the probe.

        Returns:
          Bytes and seconds of the load, and the probe's mean absolute difference in nats.

        Raises:
          ServerFault: it failed; the server must not sample until a push succeeds.
        """
        await self.call("POST", "/pause?mode=wait", limit_s=self._limits.push_s)
        await self.call("POST", "/update_weight_version", {"new_version": LOADING})
        arguments = {"name": weights.name, "checksum": weights.checksum}
        method = "gigpo_check_adapter" if weights.base else "gigpo_load"
        arguments |= {"base": weights.base} if weights.base else {}
        workers = await self._workers(method, arguments, self._limits.push_s)
        for worker in workers:
            if worker.get("checksum") != weights.checksum:
                raise ServerFault(f"did not load version {weights.label}: {worker.get('error', worker)}")
        if weights.base:
            await self._use_adapter(weights.name, worker["folder"])
        await self.call("POST", "/resume")
        found = read_probe(await self.generate(probe_request(weights.probe)), weights.probe)
        difference = float(np.mean(np.abs(found - weights.expected)))
        if not difference <= weights.tolerance:
            raise ServerFault(
                f"computes with other weights than version {weights.label}: the probe's log-probabilities differ by "
                f"{difference:.2g} nats on average (allowed {weights.tolerance:g})"
            )
        # Last, so that this label stands only on servers that passed everything.
        await self.call("POST", "/update_weight_version", {"new_version": weights.label})
        seconds = max(float(worker["seconds"]) for worker in workers)
        return {"bytes": float(workers[0]["bytes"]), "seconds": seconds, "probe_difference": difference}

    async def _use_adapter(self, name: str, folder: str) -> None:
        """Loads an adapter and unloads all others, those of earlier runs included.

        Each load has a new name, also of the same files: vLLM keeps cached prefixes by name.
        """
        self._adapters += 1
        self.adapter = f"{name}.{self._adapters}"
        body = {"lora_name": self.adapter, "lora_path": folder}
        await self.call("POST", "/v1/load_lora_adapter", body, limit_s=self._limits.push_s)
        answer = await self.call("GET", "/v1/models")
        try:
            names = [str(card["id"]) for card in answer["data"] if card.get("parent")]
        except (TypeError, KeyError, AttributeError) as err:
            raise ServerFault(f"/v1/models: unexpected answer {_shortened(answer)}") from err
        for other in names:
            if other != self.adapter:
                await self.call("POST", "/v1/unload_lora_adapter", {"lora_name": other})

    async def _workers(
        self, method: str, arguments: dict[str, Any] | None = None, limit_s: float = QUICK_S
    ) -> list[dict[str, Any]]:
        """Calls a method of `WeightLoader` on all workers and returns their results."""
        body = {"method": method, "kwargs": arguments or {}}
        answer = await self.call("POST", "/collective_rpc", body, limit_s=limit_s)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not results or not all(isinstance(result, dict) for result in results):
            raise ServerFault(f"{method}: unexpected answer {_shortened(answer)}")
        return results


def _shortened(answer: Any) -> str:
    """Returns an answer, or its error message, in one short line."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return " ".join(str(message or answer).split())[:300] or "nothing"
