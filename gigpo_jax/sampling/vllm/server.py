"""One vLLM server over HTTP: every call has a time limit, and every failure is one of two kinds of error."""

import json
import socket
import urllib.parse
import zlib
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.vllm.protocol import LOADING, ServerFault, check_release, label, probe_request, read_probe

QUICK_S = 30.0  # what a server that lives answers at once
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HINT = "it must be vLLM started by launch/vllm_sidecar.sh, or with the flags that docs/scaling.md lists"


@dataclass(frozen=True)
class Weights:
    """What a server is given.

    Attributes:
      run: names the run in version labels.
      version: as given to `update_weights`.
      file: name of the safetensors file.
      folder: where it is, as the learner sees it; a server that knows its own way to the folder uses that.
      pull_from: address that the servers pull the file from, its name left out; "" if they share the folder.
      checksum: of its tensors.
      probe: [P] token ids of the probe prompt.
      expected: [P - 1] f32, nats, the learner's log-probabilities of them.
      tolerance: nats, how far the mean absolute difference may be from zero.
      base: checksum of the model's folder, if the file is an adapter for it; "" if it has all weights.
    """

    run: str
    version: int
    file: str
    folder: str
    pull_from: str
    checksum: str
    probe: tuple[int, ...]
    expected: np.ndarray
    tolerance: float
    base: str = ""

    @property
    def label(self) -> str:
        """The version's name on the servers."""
        return label(self.run, self.version)


class Server:
    """Talks to one server.

    Attributes:
      weights_dir: the folder that it takes weights from, as it sees it.
      adapter: the one that it samples with; "" for none.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, *, request_s: float, push_s: float):
        """Connects to nothing yet.

        Args:
          url: such as http://127.0.0.1:8123.
          session: carries the key.
          request_s: limit of one response, s.
          push_s: limit of each step of a push, s.
        """
        self.url, self.weights_dir, self.adapter = url.rstrip("/"), "", ""
        self._loads = 0
        self._session, self._request_s, self._push_s = session, request_s, push_s

    @property
    def staged_as(self) -> str:
        """Tells its adapters from those of others in a shared folder, where several machines may have this address."""
        machine = socket.gethostname() if urllib.parse.urlsplit(self.url).hostname in LOOPBACK else ""
        return f"{zlib.crc32(f'{machine} {self.url}'.encode()):08x}"

    async def call(
        self, method: str, path: str, body: Any = None, *, limit_s: float = QUICK_S, plain: bool = False
    ) -> Any:
        """One exchange; with `plain` what comes back is not looked at.

        Raises:
          InputError: the server refuses this very request (400, 413, 422) or the key (401, 403).
          ServerFault: anything else that is not a whole JSON answer in time.
        """
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=timeout, allow_redirects=False
            ) as answer:
                content, status = await answer.read(), answer.status
        except TimeoutError as err:
            raise ServerFault(f"{self.url}{path}: no answer within {limit_s:g} s") from err
        except (aiohttp.ClientError, OSError, ValueError) as err:
            raise ServerFault(f"{self.url}{path}: {type(err).__name__}: {err}") from err
        if status in (401, 403):
            raise InputError(f"{self.url}: refuses the key (status {status}); set VLLM_API_KEY to the server's: {HINT}")
        if status in (400, 413, 422):
            raise InputError(f"{self.url}: refuses the request: {_message(content)}")
        if status != 200:
            raise ServerFault(f"{self.url}{path}: status {status}: {_message(content)}")
        try:
            return json.loads(content) if content and not plain else None
        except ValueError as err:
            raise ServerFault(f"{self.url}{path}: the answer is not JSON: {_message(content)}") from err

    async def generate(self, body: dict) -> Any:
        """Asks for one response; see `vllm_protocol`. With an adapter, it is the same one from question to answer."""
        asked = self.adapter
        body = body | {"model": asked} if asked else body
        answer = await self.call("POST", "/inference/v1/generate", body, limit_s=self._request_s)
        if self.adapter != asked:
            raise ServerFault("it was given another adapter meanwhile")
        return answer

    async def healthy(self) -> None:
        """Raises ServerFault unless it is up."""
        await self.call("GET", "/health")

    async def label(self) -> str:
        """Which weights it says it has."""
        answer = await self.call("GET", "/weight_info")
        return str(answer.get("weight_version", "")) if isinstance(answer, dict) else ""

    async def describe(self) -> dict[str, Any]:
        """Its release is checked first; then what the workers say of themselves.

        Raises:
          InputError: not a server that this client can use.
        """
        answer = await self.call("GET", "/version")
        release = answer.get("version") if isinstance(answer, dict) else None
        if not isinstance(release, str):
            raise InputError(f"{self.url}: not a vLLM server (/version says {str(answer)[:80]!r}); {HINT}")
        check_release(self.url, release)
        try:
            return (await self._rpc("gigpo_describe"))[0]
        except ServerFault as err:
            raise InputError(f"{self.url}: has no worker extension of ours ({err}); {HINT}") from err

    async def push(self, weights: Weights) -> dict[str, float]:
        """Replaces its weights and checks that it computes with them; on return it may sample.

        Returns:
          Bytes and seconds of the load, and the probe's mean absolute difference in nats.

        Raises:
          ServerFault: it did not take them; it must not sample until a push succeeds.
        """
        await self.call("POST", "/pause?mode=wait", limit_s=self._push_s)
        await self.call("POST", "/update_weight_version", {"new_version": LOADING})
        loaded = await (self._load_adapter(weights) if weights.base else self._load_all(weights))
        await self.call("POST", "/resume")
        found = read_probe(await self.generate(probe_request(weights.probe)), weights.probe)
        difference = float(np.mean(np.abs(found - weights.expected)))
        if not difference <= weights.tolerance:
            raise ServerFault(
                f"{self.url}: computes with other weights than those of version {weights.version}: the probe's "
                f"log-probabilities differ by {difference:.2g} nats on average (allowed {weights.tolerance:g})"
            )
        # Last: whoever finds this label on a server finds one that passed everything.
        await self.call("POST", "/update_weight_version", {"new_version": weights.label})
        seconds = max(float(worker["seconds"]) for worker in loaded)
        return {"bytes": float(loaded[0]["bytes"]), "seconds": seconds, "probe_difference": difference}

    async def _load_all(self, weights: Weights) -> list[dict]:
        if weights.pull_from:
            method, where = "gigpo_pull", {"url": weights.pull_from + weights.file}
        else:
            method, where = "gigpo_load", {"path": f"{self.weights_dir or weights.folder}/{weights.file}"}
        return self._same(weights, await self._rpc(method, where | {"checksum": weights.checksum}, self._push_s))

    async def _load_adapter(self, weights: Weights) -> list[dict]:
        """Lets the workers check it and put it into place, and the server load it under a name of its own."""
        self._loads += 1  # a name serves once, also if the same file is pushed again
        name = f"{weights.file.removesuffix('.safetensors')}.{self._loads}"
        source = weights.pull_from or f"{self.weights_dir or weights.folder}/"
        arguments = {"source": source + weights.file, "checksum": weights.checksum, "base": weights.base}
        arguments |= {"server": self.staged_as, "name": name}
        staged = self._same(weights, await self._rpc("gigpo_stage", arguments, self._push_s))
        body = {"lora_name": name, "lora_path": staged[0]["folder"]}
        await self.call("POST", "/v1/load_lora_adapter", body, limit_s=self._push_s, plain=True)
        self.adapter = name
        await self._unload_others()
        return staged

    async def _unload_others(self) -> None:
        """What was sampled with before, also by a run that was killed: its files are about to go."""
        answer = await self.call("GET", "/v1/models")
        try:
            names = [str(card["id"]) for card in answer["data"] if card.get("parent")]
        except (TypeError, KeyError, AttributeError) as err:
            raise ServerFault(f"{self.url}: /v1/models answered {str(answer)[:200]}") from err
        for name in names:
            if name == self.adapter:
                continue
            await self.call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, plain=True)

    def _same(self, weights: Weights, reports: list[dict]) -> list[dict]:
        """What the workers report, if each has read what was written."""
        for worker in reports:
            if worker.get("checksum") != weights.checksum:
                raise ServerFault(f"{self.url}: did not load version {weights.version}: {worker.get('error', worker)}")
        return reports

    async def _rpc(self, method: str, arguments: dict | None = None, limit_s: float = QUICK_S) -> list[dict]:
        body = {"method": method, "kwargs": arguments or {}}
        answer = await self.call("POST", "/collective_rpc", body, limit_s=limit_s)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not results or not all(isinstance(result, dict) for result in results):
            raise ServerFault(f"{self.url}: {method} answered {str(answer)[:200]}")
        return results


def _message(content: bytes) -> str:
    """The message of an error answer in one line."""
    try:
        parsed = json.loads(content)
        content = str(parsed["error"]["message"]).encode() if isinstance(parsed["error"], dict) else content
    except (ValueError, KeyError, TypeError):
        pass
    return " ".join(content[:300].decode(errors="replace").split()) or "nothing"
