"""Client of a vLLM server: its description, its requests and the steps of a push."""

import asyncio
import contextlib
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.remote.protocol import (
    LOADING,
    ResponseDiscarded,
    ServerFault,
    add_entropies,
    check_served,
    probe_request,
    read_probe,
)
from gigpo_jax.engines.remote.server import QUICK_S, PushedWeights, Server, summarise_answer
from gigpo_jax.engines.vllm.worker.entropies import ALTERNATIVES

# The weight update differs between releases, and earlier ones do not label tokens.
RELEASES = ("0.32", "0.33")
RELEASES_INFLIGHT = ("0.32",)  # with 0.33 requests had to be repeated
MODE = "processed_logprobs"  # vLLM's default ignores the temperature
FIXES = {
    "dtype": "make --dtype and engine.dtype the same",
    "head_dtype": """start it with --hf-overrides '{"head_dtype": "float32"}'""",
    "cache_dtype": "start it with --kv-cache-dtype auto",
    "quantization": "start it without --quantization",
    "logprobs_mode": f"start it with --logprobs-mode {MODE}",
    "takes_seeds": "start it with --no-enable-chunked-prefill",
}


class VllmServer(Server):
    """A server of vLLM with the worker extension.

    Attributes:
      adapter: Name of the adapter that it samples with; "" for none.
    """

    key_name = "VLLM_API_KEY"
    fix = "start one with launch/vllm_sidecar.sh"
    adapter = ""
    _adapter_loads = 0
    # Label of weights in flight until their probe is verified.
    _unverified_label: str | None = None
    _failed_probes = 0  # of weights in flight

    def __init__(
        self,
        *args: Any,
        keeps_entropies: bool = False,
        inflight: bool = False,
        num_tokens: int = 0,
    ) -> None:
        """Stores the address; other arguments as for `Server`.

        Args:
          keeps_entropies: Whether responses have entropies.
          inflight: Whether pushes replace the weights of running requests.
          num_tokens: `DecoderConfig.num_tokens` of the model.
        """
        super().__init__(*args)
        self._keeps_entropies = keeps_entropies
        self._releases = RELEASES_INFLIGHT if inflight else RELEASES
        self._inflight = inflight
        self._num_tokens = num_tokens
        # Of requests that the server has; `check` sets it.
        self._places: contextlib.AbstractAsyncContextManager[Any] = contextlib.nullcontext()
        # Held while running requests go on with weights whose probe is not verified.
        self._probing = asyncio.Lock()

    async def weights_label(self) -> str:
        """Implements `Server.weights_label`; weights that are not verified do not count."""
        label = await super().weights_label()
        return LOADING if label == self._unverified_label else label

    async def generate(self, body: dict[str, Any]) -> Any:
        """Implements `Server.generate`; tokens of weights that fail their probe do not count."""
        async with self._places:
            failed_probes = self._failed_probes
            answer = await self._generate_unverified(body)
        async with self._probing:
            pass
        # A later push may have given the same label.
        if self._failed_probes != failed_probes:
            raise ResponseDiscarded("weights failed their probe during the request")
        return answer

    async def _generate_unverified(self, body: dict[str, Any]) -> Any:
        """Requests one response from one adapter; see `protocol` for request and answer."""
        # A push may change the adapter during the request: its response has mixed weights then. In
        # flight the name stays the same, and labels tell which token has which.
        adapter = self.adapter
        if adapter:
            body = body | {"model": adapter}
        if self._keeps_entropies:
            body = body | {"sampling_params": body["sampling_params"] | {"logprobs": ALTERNATIVES}}
        answer = await super().generate(body)
        if self.adapter != adapter:
            raise ServerFault("the adapter changed during the request")
        if self._keeps_entropies:
            add_entropies(answer)
        return answer

    async def check(
        self, expected: dict[str, Any], *, max_length: int, rank: int, base: str
    ) -> None:
        """Implements `Server.check`."""
        del base  # checked with every adapter
        description = await self.describe()
        check_description(self.url, description, expected, max_length=max_length, rank=rank)
        if self._inflight:
            # A probe behind a queue of requests would hold up the push until they have ended. So
            # the rest waits here, and one place of the server is free for the probe.
            self._places = asyncio.Semaphore(max(1, description["max_num_seqs"] - 1))

    async def describe(self) -> dict[str, Any]:
        """Checks the release and returns the first worker's description.

        Raises:
          InputError: This client cannot use the server.
        """
        answer = await self.call("GET", "/version")
        release = answer.get("version") if isinstance(answer, dict) else None
        if ".".join(str(release).split(".")[:2]) not in self._releases:
            flight = " for train.inflight" if self._inflight else ""
            releases = " or ".join(self._releases)
            raise InputError(
                f"not vLLM {releases}{flight} (/version says {summarise_answer(answer)})",
                key=self.url,
                fix=self.fix,
            )
        try:
            descriptions = await self._call_workers("gigpo_describe")
            # All workers of a server have the same model and settings.
            return descriptions[0]
        except ServerFault as err:
            raise InputError(
                f"the worker extension is missing ({err})", key=self.url, fix=self.fix
            ) from err

    async def push(self, weights: PushedWeights) -> dict[str, float]:
        """Replaces the weights and verifies them with the probe.

        Returns:
          Bytes and seconds of the load, and the probe's mean absolute difference in nats.

        Raises:
          ServerFault: The push failed; the server must not sample until a push succeeds.
        """
        # Requests under way finish with the old weights and keep their label, or with in-flight
        # weights stop and go on with the new ones.
        mode = "keep" if weights.inflight else "wait"
        await self.call("POST", f"/pause?mode={mode}", limit_s=self._limits.push_s)
        # Responses that are sampled while weights change carry this label and are discarded.
        await self._set_label(LOADING)
        reports = await self._load_weights(weights)
        if weights.inflight:
            difference = await self._verify_in_flight(weights)
        else:
            # A paused server would not answer the probe. Other clients sample nothing that counts:
            # the label is still LOADING.
            await self.call("POST", "/resume")
            difference = await self._compare_probe(weights)
            # Last, so that this label stays only on servers that passed everything.
            await self._set_label(weights.label)
        return {
            "bytes": float(reports[0]["bytes"]),
            "seconds": max(float(report["seconds"]) for report in reports),
            "probe_difference": difference,
        }

    async def _verify_in_flight(self, weights: PushedWeights) -> float:
        """Compares the probe as `_compare_probe` does, while requests go on with the new label."""
        async with self._probing:
            self._unverified_label = weights.label
            try:
                await self._set_label(weights.label)
                await self.call("POST", "/resume")
                difference = await self._compare_probe(weights)
            except Exception:
                self._failed_probes += 1
                with contextlib.suppress(ServerFault, InputError):
                    await self._set_label(LOADING)
                raise
            self._unverified_label = None
            return difference

    async def release(self) -> None:
        """Implements `Server.release`."""
        with contextlib.suppress(ServerFault, InputError):
            await self.call("POST", "/resume")

    async def _set_label(self, label: str) -> None:
        await self.call("POST", "/update_weight_version", {"new_version": label})

    async def _compare_probe(self, weights: PushedWeights) -> float:
        """Returns the probe's mean absolute difference in nats.

        Raises:
          ServerFault: It is too large.
        """
        answer = await self._generate_unverified(probe_request(weights.probe))
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
        return difference

    async def _load_weights(self, weights: PushedWeights) -> list[dict[str, Any]]:
        """Loads weights or an adapter on all workers, and returns their reports."""
        # Both with every push, because a server that was restarted does not keep them.
        if self._num_tokens:
            await self._call_workers("gigpo_mask_padding", {"num_tokens": self._num_tokens})
        if self._keeps_entropies:
            for report in await self._call_workers("gigpo_keep_entropies"):
                if report:
                    raise ServerFault(f"gives no entropies: {report.get('error', report)}")
        method = "gigpo_load"
        arguments = {"name": weights.name, "checksum": weights.checksum}
        is_replaced = False
        loaded: list[str] = []
        if weights.base:
            method = "gigpo_check_adapter"
            arguments["base"] = weights.base
            loaded = await self._loaded_adapters()
            # Running requests keep the name of their adapter. A server that was restarted has none.
            is_replaced = weights.inflight and self.adapter in loaded
        if is_replaced:
            method = "gigpo_replace_adapter"
            arguments["adapter"] = self.adapter
        reports = await self._call_workers(method, arguments, self._limits.push_s)
        for report in reports:
            # Every worker must have loaded this file, not only the one that answers requests.
            if report.get("checksum") != weights.checksum:
                raise ServerFault(
                    f"did not load version {weights.label}: {report.get('error', report)}"
                )
        if weights.base and not is_replaced:
            await self._use_adapter(weights.name, reports[-1]["folder"])
        # Those of earlier runs too.
        for adapter in loaded:
            if adapter != self.adapter:
                await self.call("POST", "/v1/unload_lora_adapter", {"lora_name": adapter})
        return reports

    async def _use_adapter(self, name: str, folder: str) -> None:
        """Loads an adapter under a new name, because vLLM keeps cached prefixes by name."""
        self._adapter_loads += 1
        # Set before the load: `generate` discards responses that began with another adapter.
        self.adapter = f"{name}.{self._adapter_loads}"
        body = {"lora_name": self.adapter, "lora_path": folder}
        await self.call("POST", "/v1/load_lora_adapter", body, limit_s=self._limits.push_s)

    async def _loaded_adapters(self) -> list[str]:
        answer = await self.call("GET", "/v1/models")
        try:
            # Only adapters have a parent; the model itself has none.
            return [str(card["id"]) for card in answer["data"] if card.get("parent")]
        except (TypeError, KeyError, AttributeError) as err:
            raise ServerFault(f"/v1/models: unexpected answer {summarise_answer(answer)}") from err

    async def _call_workers(
        self, method: str, arguments: dict[str, Any] | None = None, limit_s: float = QUICK_S
    ) -> list[dict[str, Any]]:
        """Calls a method of `WeightLoader` on all workers, and returns their results."""
        body = {"method": method, "kwargs": arguments or {}}
        answer = await self.call("POST", "/collective_rpc", body, limit_s=limit_s)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not results or not all(isinstance(result, dict) for result in results):
            raise ServerFault(f"{method}: unexpected answer {summarise_answer(answer)}")
        return results


def check_description(
    url: str, description: dict[str, Any], expected: dict[str, Any], *, max_length: int, rank: int
) -> None:
    """Checks that a server has the learner's model, and settings that give right numbers.

    Args:
      url: Address of the server.
      description: Result of `VllmServer.describe`.
      expected: Architecture of the learner, "tokenizer" fingerprint and "dtype", by the same keys.
      max_length: Largest number of tokens of prompt and response together.
      rank: Rank of the adapter, 0 if all weights are trained.

    Raises:
      InputError: A value differs.
    """
    # The precision of engine and learner, from the head's logits to the cache. vLLM's norms have
    # float32 statistics, as ours do.
    expected = expected | {
        "logprobs_mode": MODE,
        "takes_seeds": True,
        "head_dtype": "float32",
        "cache_dtype": expected.get("dtype"),
        "quantization": "none",
    }
    fixes = FIXES | {"max_model_len": f"start it with --max-model-len {max_length}"}
    check_served(url, description, expected, max_length=max_length, fixes=fixes)
    if not description.get("weights_dir"):
        raise InputError(
            "takes no weights", key=url, fix="start it with launch/vllm_sidecar.sh --weights-dir"
        )
    server_rank = description.get("adapter_rank", 0)
    # A server that takes adapters refuses to replace the model below them.
    if server_rank < rank or (server_rank and not rank):
        option = f"with --lora-rank {rank}" if rank else "without --lora-rank"
        raise InputError(
            f"its largest adapter rank is {server_rank}, model.lora.rank={rank}",
            key=url,
            fix=f"start it {option}",
        )
