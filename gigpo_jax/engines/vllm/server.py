"""Client of one vLLM server: every call has a time limit and ends in an answer or an error."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.vllm.launch import ServerProcess
from gigpo_jax.engines.vllm.protocol import (
    KNOWN_RELEASE,
    LOADING,
    Limits,
    ServerFault,
    probe_request,
    read_probe,
)

QUICK_S = 30.0  # limit of calls that a working server answers at once
HINT = "start one with launch/vllm_sidecar.sh"


@dataclass(frozen=True)
class PushedWeights:
    """The weights of one push and their probe.

    The probe verifies the weights.

    Attributes:
      label: Name of the version on the servers.
      name: File or adapter folder in the weights folder.
      checksum: Checksum of its tensors.
      probe: [P], token ids of the probe prompt.
      expected: [P - 1] f32, nats, the learner's log-probabilities of them; may still be computed.
      tolerance: Largest accepted mean absolute difference, nats.
      base: Checksum of the model's folder for an adapter; "" if the file has all weights.
    """

    label: str
    name: str
    checksum: str
    probe: tuple[int, ...]
    expected: Any
    tolerance: float
    base: str = ""


class Server:
    """Talks to one server; `ServerPool` decides when.

    Attributes:
      url: Address, such as http://127.0.0.1:8123.
      process: Process of the server, if this run started it.
      adapter: Name of the adapter that it samples with; "" for none.
      state: State; only "ready" servers get requests; "lost" is final.
      load: Number of requests under way.
      failures: Number of recoveries since the last response.
      restarts: Number of restarts so far.
      reason: Reason for which it is not ready.
      push_report: Report of the last push.
      recovery: Task that makes it ready.
    """

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        limits: Limits,
        process: ServerProcess | None = None,
    ):
        """Stores the address; connects to nothing yet.

        The HTTP session has the key.
        """
        self.url = url.rstrip("/")
        self.process = process
        self._session = session
        self._limits = limits
        self.adapter = ""
        self.state: Literal["recovering", "ready", "lost"] = "recovering"
        self.load = 0
        self.failures = 0
        self.restarts = 0
        self.reason = "not started"
        self.push_report: dict[str, float] = {}
        self._adapter_loads = 0
        self.recovery: asyncio.Task[None] | None = None

    async def call(
        self, method: str, path: str, body: Any = None, *, limit_s: float = QUICK_S
    ) -> Any:
        """Makes one call and returns its parsed JSON.

        An answer of another content type is returned as text.

        Raises:
          InputError: The server refuses the request (400, 413, 422) or the key (401, 403).
          ServerFault: The call failed in another way.
        """
        # No redirects: they would take the key to another address.
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=timeout, allow_redirects=False
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
                fix="set VLLM_API_KEY to the server's",
            )
        if status in (400, 413, 422):
            raise InputError(f"refuses the request: {_summarise_answer(answer)}", key=self.url)
        if status != 200:
            raise ServerFault(f"{path}: status {status}: {_summarise_answer(answer)}")
        return answer

    async def generate(self, body: dict[str, Any]) -> Any:
        """Requests one response from one adapter.

        See `protocol` for request and answer.
        """
        # A push may change the adapter during the request: its response has mixed weights then.
        adapter = self.adapter
        if adapter:
            body = body | {"model": adapter}
        answer = await self.call(
            "POST", "/inference/v1/generate", body, limit_s=self._limits.request_s
        )
        if self.adapter != adapter:
            raise ServerFault("the adapter changed during the request")
        return answer

    async def check_health(self) -> None:
        """Raises ServerFault unless the server is up."""
        await self.call("GET", "/health")

    async def weights_label(self) -> str:
        """Returns the label of the weights that the server has."""
        answer = await self.call("GET", "/weight_info")
        return str(answer.get("weight_version", "")) if isinstance(answer, dict) else ""

    async def describe(self) -> dict[str, Any]:
        """Checks the release and returns the first worker's description.

        Raises:
          InputError: This client cannot use the server.
        """
        answer = await self.call("GET", "/version")
        release = answer.get("version") if isinstance(answer, dict) else None
        if not str(release).startswith(KNOWN_RELEASE):
            raise InputError(
                f"not vLLM {KNOWN_RELEASE}x (/version says {_summarise_answer(answer)})",
                key=self.url,
                fix=HINT,
            )
        try:
            descriptions = await self._call_workers("gigpo_describe")
            # All workers of a server have the same model and settings.
            return descriptions[0]
        except ServerFault as err:
            raise InputError(
                f"the worker extension is missing ({err})", key=self.url, fix=HINT
            ) from err

    async def push(self, weights: PushedWeights) -> dict[str, float]:
        """Replaces the weights and verifies them with the probe.

        Returns:
          Bytes and seconds of the load, and the probe's mean absolute difference in nats.

        Raises:
          ServerFault: The push failed; the server must not sample until a push succeeds.
        """
        # Requests under way finish with the old weights and keep their label.
        await self.call("POST", "/pause?mode=wait", limit_s=self._limits.push_s)
        # Responses that are sampled while weights change carry this label and are discarded.
        await self.call("POST", "/update_weight_version", {"new_version": LOADING})
        reports = await self._load_weights(weights)
        # A paused server would not answer the probe. Other clients sample nothing that counts: the
        # label is still LOADING.
        await self.call("POST", "/resume")
        answer = await self.generate(probe_request(weights.probe))
        logprobs = read_probe(answer, weights.probe)
        # In a thread: the learner may not have computed them yet.
        expected = await asyncio.to_thread(np.asarray, weights.expected)
        difference = float(np.mean(np.abs(logprobs - expected)))
        # In this form NaN is refused too.
        if not difference <= weights.tolerance:
            raise ServerFault(
                f"computes with other weights than version {weights.label}: the probe's "
                f"log-probabilities differ by {difference:.2g} nats on average "
                f"(allowed {weights.tolerance:g})"
            )
        # Last, so that this label stands only on servers that passed everything.
        await self.call("POST", "/update_weight_version", {"new_version": weights.label})
        return {
            "bytes": float(reports[0]["bytes"]),
            "seconds": max(float(report["seconds"]) for report in reports),
            "probe_difference": difference,
        }

    async def _load_weights(self, weights: PushedWeights) -> list[dict[str, Any]]:
        """Loads weights or an adapter on all workers.

        It returns their reports.
        """
        method = "gigpo_load"
        arguments = {"name": weights.name, "checksum": weights.checksum}
        if weights.base:
            method = "gigpo_check_adapter"
            arguments["base"] = weights.base
        reports = await self._call_workers(method, arguments, self._limits.push_s)
        for report in reports:
            # Every worker must have loaded this file, not only the one that answers requests.
            if report.get("checksum") != weights.checksum:
                raise ServerFault(
                    f"did not load version {weights.label}: {report.get('error', report)}"
                )
        if weights.base:
            await self._use_adapter(weights.name, reports[-1]["folder"])
        return reports

    async def _use_adapter(self, name: str, folder: str) -> None:
        """Loads an adapter and unloads all others.

        Those of earlier runs are unloaded too. Each load has a new name, also of the same files:
        vLLM keeps cached prefixes by name.
        """
        self._adapter_loads += 1
        # Set before the load: `generate` discards responses that began with another adapter.
        self.adapter = f"{name}.{self._adapter_loads}"
        body = {"lora_name": self.adapter, "lora_path": folder}
        await self.call("POST", "/v1/load_lora_adapter", body, limit_s=self._limits.push_s)
        answer = await self.call("GET", "/v1/models")
        try:
            # Only adapters have a parent; the model itself has none.
            names = [str(card["id"]) for card in answer["data"] if card.get("parent")]
        except (TypeError, KeyError, AttributeError) as err:
            raise ServerFault(f"/v1/models: unexpected answer {_summarise_answer(answer)}") from err
        for adapter in names:
            if adapter != self.adapter:
                await self.call("POST", "/v1/unload_lora_adapter", {"lora_name": adapter})

    async def _call_workers(
        self, method: str, arguments: dict[str, Any] | None = None, limit_s: float = QUICK_S
    ) -> list[dict[str, Any]]:
        """Calls a method of `WeightLoader` on all workers.

        It returns their results.
        """
        body = {"method": method, "kwargs": arguments or {}}
        answer = await self.call("POST", "/collective_rpc", body, limit_s=limit_s)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not results or not all(isinstance(result, dict) for result in results):
            raise ServerFault(f"{method}: unexpected answer {_summarise_answer(answer)}")
        return results


def _summarise_answer(answer: Any) -> str:
    """Returns an answer or its error message in one line.

    It has at most 300 characters.
    """
    message = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        message = answer["error"].get("message")
    return " ".join(str(message or answer).split())[:300] or "nothing"
