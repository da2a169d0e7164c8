"""Samples responses from vLLM servers; see `sampling.base.Engine`.

A thread with its own event loop talks to the servers, so requests continue while the learner computes, and
`update_weights` can be called from any thread. A response counts only if the server labels every token with a version
of this run that is at least as new as the weights when the request was made; others are requested again.

Unlike the in-process engine's, responses repeat only up to rounding: other requests on the same server change the last
bits, and sometimes a token.
"""

import asyncio
import concurrent.futures
import secrets
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from gigpo_jax.errors import InputError
from gigpo_jax.models import lora, qwen2
from gigpo_jax.models.hf_config import config_json
from gigpo_jax.models.images import PromptImages
from gigpo_jax.models.safetensors_file import SUFFIX
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.sampling.base import Completion, EngineLost, OnTokens, SamplingParams
from gigpo_jax.sampling.placement import mesh_of
from gigpo_jax.sampling.request import checked_images, checked_prompt, stop_ids
from gigpo_jax.sampling.stopping import StopStrings
from gigpo_jax.sampling.vllm.launch import ServerProcess
from gigpo_jax.sampling.vllm.protocol import (
    Limits,
    ServerFault,
    check_description,
    check_expanded,
    generate_request,
    label,
    read_completion,
)
from gigpo_jax.sampling.vllm.server import Server, Weights
from gigpo_jax.sampling.vllm.servers import Say, ServerPool
from gigpo_jax.sampling.vllm.weight_store import WeightStore
from gigpo_jax.sampling.vllm.worker.extension import architecture, described_vision

ATTEMPTS = 5  # of one request
REQUEST_LIMIT_S = 3600.0
CLOSE_LIMIT_S = 90.0
# Nats: largest accepted mean absolute difference of the probe's log-probabilities between learner and server. Measured
# with eight probes in bfloat16 (CPU build): up to 0.068 with the right weights, 0.14 and more with one layer's values
# permuted; in float32 below 1e-4 with the right ones. A small update does not show in a probe, only in the checksum.
TOLERANCE = {"float32": 2e-3, "bfloat16": 0.1}

_T = TypeVar("_T")


@dataclass(frozen=True)
class VllmSettings:
    """How the engine reaches its servers.

    Attributes:
      urls: of servers that are running already.
      processes: servers that this engine starts and ends.
      key: bearer token of all of them; "" for none.
      dtype: of the servers' computation and of written weights.
      max_length: prompt and response together, tokens.
      tokenizer: fingerprint of the learner's tokenizer.
      probe: [P] token ids, P >= 2, whose log-probabilities verify a push.
      limits: of waits and restarts.
      base: `folder_checksum` of the model if an adapter is trained; "" otherwise.
    """

    urls: tuple[str, ...]
    processes: tuple[ServerProcess, ...]
    key: str
    dtype: str
    max_length: int
    tokenizer: str
    probe: tuple[int, ...]
    limits: Limits
    base: str = ""


class VllmEngine:
    """An engine whose responses come from vLLM servers.

    Attributes:
      retries: requests that were repeated.
      last_push: largest bytes, seconds and probe difference (nats) that a server reported for the last push.
    """

    def __init__(
        self,
        config: qwen2.Qwen2Config,
        params: qwen2.Params,
        *,
        settings: VllmSettings,
        store: WeightStore,
        tokenizer: Tokenizer | None = None,
        version: int = 0,
        say: Say = lambda _: None,
    ):
        """Starts or connects to all servers and gives them the parameters.

        Args:
          config: the model's shape.
          params: its parameters.
          settings: which servers, and how.
          store: where weights are written; this engine closes it.
          tokenizer: finds stop strings; None if no request has any.
          version: of the parameters.
          say: takes progress messages.

        Raises:
          InputError: a server does not come up, or serves something else.
        """
        self.config, self._settings, self._store = config, settings, store
        self._run, self._version = secrets.token_hex(4), version
        self._stops = StopStrings(tokenizer, config.vocab_size) if tokenizer is not None else None
        self.retries = 0
        self.last_push: dict[str, float] = {}
        self._score = _probe_program(config, params, settings)
        adapter = lora.detach(params)
        self._rank = 0 if adapter is None else lora.rank_of(adapter)
        self._closed = False
        self._session: aiohttp.ClientSession | None = None
        self._pool = ServerPool([], settings.limits, say)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-client", daemon=True)
        self._thread.start()
        try:
            self._wait(self._open())
            self.update_weights(params, version)
        except EngineLost as err:
            self.close()
            raise InputError(str(err)) from err
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "VllmEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def compile_count(self) -> int:
        """Number of compiled programs: that of the probe."""
        return self._score._cache_size()

    async def generate(
        self,
        tokens: Sequence[int] | np.ndarray,
        params: SamplingParams,
        images: PromptImages | None = None,
        *,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Samples one response.

        Args:
          tokens: [P] the prompt's token ids, 1 <= P <= max_length - params.max_tokens.
          params: how to sample; requests of one session go to the same server while it is up.
          images: those of the prompt's places.
          on_tokens: never called: a response counts only when the labels of all its tokens were checked.

        Returns:
          The response, and the version of the weights, at least that of the last `update_weights` before the call.

        Raises:
          InputError: the prompt or a setting is not possible; only this request fails.
          EngineLost: no server is left.
          RuntimeError: the engine is closed, or all attempts failed.
          TimeoutError: no response within an hour.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        longest = self._settings.max_length
        prompt = checked_prompt(tokens, params, max_length=longest, longest=longest, vocab_size=self.config.vocab_size)
        images = checked_images(self.config.vision, prompt, images)
        body = generate_request(prompt, params, stop_ids(params, self._stops), images)
        request = self._generate(body, params, prompt)
        work = asyncio.run_coroutine_threadsafe(request, self._loop)
        async with asyncio.timeout(REQUEST_LIMIT_S):
            return await asyncio.wrap_future(work)

    def free_memory(self) -> None:
        """Does nothing: servers have devices of their own."""

    def update_weights(self, params: qwen2.Params, version: int) -> None:
        """Gives all servers new weights; blocks until each has them or is dropped.

        Requests under way finish with the old weights; requests from now on wait for the new ones.

        Args:
          params: a tree like the one given at the start; not kept.
          version: returned with every completion.

        Raises:
          EngineLost: they cannot be written, or no server could take them.
        """
        name = f"{self._run}.host{jax.process_index()}.{version}.{secrets.token_hex(3)}"
        expected = np.asarray(self._score(params), np.float32)
        dtype, adapter = jax.numpy.dtype(self._settings.dtype), lora.detach(params)
        self._loop.call_soon_threadsafe(self._pool.hold)
        try:
            if adapter is None:
                name += SUFFIX
                checksum = self._store.write(self.config, params, dtype=dtype, name=name)
            else:
                checksum = self._store.write_adapter(adapter, dtype=dtype, name=name)
        except OSError as err:
            folder = f"config.engine.vllm.weights_dir: {self._store.folder}"
            raise EngineLost(f"{folder}: cannot be written ({err.strerror}); use a folder with more room") from err
        self._version = version
        weights = Weights(
            label=label(self._run, version),
            name=name,
            checksum=checksum,
            probe=self._settings.probe,
            expected=expected,
            tolerance=TOLERANCE[self._settings.dtype],
            base="" if adapter is None else self._settings.base,
        )
        self._wait(self._pool.push(weights))
        reports = [server.pushed for server in self._pool.servers if server.state == "ready"]
        self.last_push = {key: max(report[key] for report in reports) for key in reports[0]} if reports else {}

    def close(self) -> None:
        """Ends the servers that it started, and the thread; waiting requests fail. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._wait(self._close(), CLOSE_LIMIT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_LIMIT_S)
            self._store.close()

    # The rest runs in the client's event loop.

    async def _open(self) -> None:
        settings = self._settings
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        # No limit on connections: the servers batch whatever waits there, so requests must not wait here.
        session = self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0), headers=headers, trust_env=False
        )
        self._pool.servers += [Server(url, session, settings.limits) for url in settings.urls]
        self._pool.servers += [Server(own.url, session, settings.limits, own) for own in settings.processes]
        await self._pool.open(self._check)

    async def _check(self, server: Server) -> None:
        found = await server.describe()
        wanted = architecture(config_json(self.config, self._settings.dtype))
        wanted |= described_vision(self.config.vision)
        wanted |= {"tokenizer": self._settings.tokenizer, "dtype": self._settings.dtype}
        check_description(server.url, found, wanted, max_length=self._settings.max_length, rank=self._rank)

    async def _generate(self, body: dict[str, Any], params: SamplingParams, prompt: np.ndarray) -> Completion:
        wanted, trouble = self._version, ""
        for attempt in range(ATTEMPTS):
            server = await self._pool.choose(params.session)
            server.load += 1
            try:
                answer = await server.generate(body)
                response = read_completion(answer, self._run, params.max_tokens)
                if response.version < wanted:
                    raise ServerFault(f"sampled from version {response.version}, wanted {wanted}")
            except ServerFault as err:
                trouble = f"{server.url}: {err}"
                self.retries += 1
                self._pool.report(server, str(err))
                await asyncio.sleep(0.1 * attempt)
            else:
                server.failures = 0
                if "content_parts" in body:
                    check_expanded(server.url, answer, prompt)
                return self._cut(response, params)
            finally:
                server.load -= 1
        raise RuntimeError(f"no usable response in {ATTEMPTS} attempts; the last failure: {trouble}")

    def _cut(self, response: Completion, params: SamplingParams) -> Completion:
        """Ends a response with the token that completes a stop string, as the other engine does."""
        if not params.stop_strings or self._stops is None:
            return response
        end = self._stops.completed_at(response.tokens.tolist(), 0, params.stop_strings)
        if end is None:
            return response
        return Completion(response.tokens[: end + 1], response.logprobs[: end + 1], "stop", response.version)

    async def _close(self) -> None:
        await self._pool.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _wait(self, work: Coroutine[Any, Any, _T], limit_s: float | None = None) -> _T:
        """Runs a coroutine in the client's loop and waits for it; calls in there have their own limits."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except concurrent.futures.CancelledError as err:
            raise RuntimeError("the engine was closed") from err
        except BaseException:  # Ctrl-C among them
            future.cancel()
            raise


def _probe_program(config: qwen2.Qwen2Config, params: qwen2.Params, settings: VllmSettings) -> Any:
    """Returns a jitted function params -> [P - 1] f32, log-probabilities of the probe's tokens."""
    probe = jax.numpy.asarray(settings.probe, jax.numpy.int32)

    def score(params: qwen2.Params) -> jax.Array:
        logits = qwen2.logits(config, params, probe[None], dtype=jax.numpy.dtype(settings.dtype))[0, :-1]
        return jax.numpy.take_along_axis(jax.nn.log_softmax(logits), probe[1:, None], axis=1)[:, 0]

    mesh = mesh_of(params)
    return jax.jit(score, out_shardings=None if mesh is None else NamedSharding(mesh, PartitionSpec()))
