"""Samples responses from servers; see `engines.base.Engine`.

A thread with its own event loop talks to the servers, so requests continue while the learner
computes, and `update_weights` can be called from any thread. A response counts only if the server
labels every token with a version of this run that is at least as new as the weights when the
request was made; others are requested again.

With vLLM's servers responses repeat only up to rounding: other requests on the same server change
the last bits, and sometimes a token.
"""

import asyncio
import concurrent.futures
import secrets
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp
import jax
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, EngineLost, OnTokens, SamplingParams
from gigpo_jax.engines.prompt_images import check_images
from gigpo_jax.engines.remote.probe import make_probe_scorer, scores_files
from gigpo_jax.engines.remote.protocol import (
    Limits,
    ResponseDiscarded,
    ServerFault,
    check_expanded,
    read_generated,
    version_label,
)
from gigpo_jax.engines.remote.server import PushedWeights, Server, open_socket
from gigpo_jax.engines.remote.servers import Say, ServerPool
from gigpo_jax.engines.remote.weight_store import WeightStore, push_name
from gigpo_jax.engines.request import check_prompt, select_stop_ids
from gigpo_jax.engines.stopping import StopStrings
from gigpo_jax.engines.vllm.launch import ServerProcess
from gigpo_jax.engines.vllm.worker.extension import architecture, describe_vision
from gigpo_jax.models import decoder, lora
from gigpo_jax.models.files.safetensors_file import SUFFIX
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.vision.images import PromptImages

ATTEMPTS = 5  # of one request
REQUEST_LIMIT_S = 3600.0
CLOSE_LIMIT_S = 90.0
# Nats: largest accepted mean absolute difference of the probe's log-probabilities between learner
# and server. Measured with eight probes in bfloat16 (CPU build): up to 0.068 with the right
# weights, 0.14 and more with one layer's values permuted; in float32 below 1e-4 with the right
# ones. A small update does not show in a probe, only in the checksum.
TOLERANCE = {"float32": 2e-3, "bfloat16": 0.1}

_T = TypeVar("_T")


@dataclass(frozen=True)
class RemoteSettings:
    """Servers of the engine, and the settings they must have.

    Attributes:
      server: Class of the servers, or a function of its arguments.
      make_request: Function that makes the body of a request, like `protocol.generate_request`.
      urls: Addresses of servers that are running already.
      processes: Servers that this engine starts and ends.
      key: Bearer token of all servers; "" for none.
      dtype: Dtype of the servers' computation and of written weights.
      max_length: Largest number of tokens of prompt and response together.
      tokenizer: Fingerprint of the learner's tokenizer.
      probe: [P] token ids, P >= 2, whose log-probabilities verify a push.
      limits: Limits of waits and restarts.
      base: `folder_checksum` of the model if an adapter is trained; "" otherwise.
      inflight: Whether a push replaces the weights of running requests.
    """

    server: Callable[..., Server]
    make_request: Callable[..., dict[str, Any]]
    urls: tuple[str, ...]
    processes: tuple[ServerProcess, ...]
    key: str
    dtype: str
    max_length: int
    tokenizer: str
    probe: tuple[int, ...]
    limits: Limits
    base: str = ""
    inflight: bool = False


class RemoteEngine:
    """An engine whose responses come from servers.

    Attributes:
      retries: Number of requests that were repeated.
      prompt_tokens, generated_tokens: Numbers of tokens of all prompts and responses so far.
      last_push: Largest bytes, seconds and probe difference (nats) that a server reported for the
        last push.
    """

    def __init__(
        self,
        config: decoder.DecoderConfig,
        params: decoder.Params,
        *,
        settings: RemoteSettings,
        store: WeightStore,
        tokenizer: Tokenizer | None = None,
        version: int = 0,
        say: Say = lambda _: None,
    ):
        """Starts or connects to all servers, and gives them the parameters.

        Args:
          config: Shape of the model.
          params: Parameters of the model.
          settings: Servers and their settings.
          store: Folder of written weights; this engine closes it.
          tokenizer: Decoder of responses for stop strings; None if no request has any.
          version: Version of the parameters.
          say: Function that takes progress messages.

        Raises:
          InputError: A server does not come up, or serves something else.
        """
        self.config = config
        self._settings = settings
        self._store = store
        # Servers may outlive a run: its labels must differ from those of the run before.
        self._run = secrets.token_hex(4)
        self._version = version
        self._stops = StopStrings(tokenizer) if tokenizer is not None else None
        self.retries = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.last_push: dict[str, float] = {}
        adapter = lora.detach_adapter(params)
        self._scores_files = adapter is None and scores_files(config, settings.dtype)
        if self._scores_files:
            # Its parameters are on one device.
            self._score_probe = make_probe_scorer(replace(config, for_cpu=True), {}, settings.dtype)
        else:
            self._score_probe = make_probe_scorer(config, params, settings.dtype)
        self._rank = 0 if adapter is None else lora.adapter_rank(adapter)
        self._closed = False
        self._session: aiohttp.ClientSession | None = None
        self._pool = ServerPool([], settings.limits, say)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="engine-client", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._open_servers())
            self.update_weights(params, version)
        # Before the first update the cause is a setting, such as an address or the command.
        except EngineLost as err:
            self.close()
            raise InputError(str(err)) from err
        # Ctrl-C too: servers that were started must not stay.
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RemoteEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def compile_count(self) -> int:
        """Number of compiled programs of the probe; the engine has no others."""
        return self._score_probe._cache_size()

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
          tokens: [P], the prompt's token ids, 1 <= P <= max_length - params.max_tokens.
          params: Sampling settings; requests of one session go to the same server while it is up.
          images: Images of the prompt.
          on_tokens: Callback that is never called: a response counts only once the labels of all
            its tokens were checked.

        Returns:
          The response. Its version is at least the version of the last `update_weights` before the
          call.

        Raises:
          InputError: The prompt or a setting is not possible; only this request fails.
          EngineLost: No server is left.
          RuntimeError: The engine is closed, or all attempts failed.
          TimeoutError: No response within an hour.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        max_length = self._settings.max_length
        prompt = check_prompt(
            tokens,
            params,
            max_length=max_length,
            max_prompt=max_length,
            vocab_size=self.config.vocab_size,
        )
        if images is not None or self.config.vision is not None:
            images = check_images(self.config.vision, prompt, images)
        stop_ids = select_stop_ids(params, self._stops)
        self.prompt_tokens += prompt.size
        body = self._settings.make_request(prompt, params, stop_ids, images)
        # Runs in the client's loop. `wrap_future` passes on a cancellation, so that a caller that
        # gives up ends its request there.
        request = self._generate_with_retries(body, params, prompt)
        response = asyncio.run_coroutine_threadsafe(request, self._loop)
        async with asyncio.timeout(REQUEST_LIMIT_S):
            completion = await asyncio.wrap_future(response)
        self.generated_tokens += completion.tokens.size
        return completion

    def end_session(self, session: tuple[int, int]) -> None:
        """Tells the session's server; see `engines.base.Engine`."""
        self._loop.call_soon_threadsafe(self._pool.end_session, session)

    def free_memory(self) -> None:
        """Does nothing: servers have devices of their own."""

    def update_weights(self, params: decoder.Params, version: int) -> None:
        """Gives all servers new weights.

        It blocks until each has them or is dropped. Requests under way finish with the old weights,
        or go on with the new ones (`RemoteSettings.inflight`); requests from now on wait for these.

        Args:
          params: Tree like the constructor's; not kept.
          version: Version of later completions.

        Raises:
          EngineLost: The weights cannot be written, or no server could take them.
        """
        # With the number of the host, because hosts may share the folder.
        name = push_name(f"{self._run}.host{jax.process_index()}.{version}")
        probe = np.array(self._settings.probe)
        if not self._scores_files:
            # Computed while the weights are written and loaded.
            expected = self._score_probe(params, probe)
        dtype = jax.numpy.dtype(self._settings.dtype)
        adapter = lora.detach_adapter(params)
        # Servers that recover during the write would look for files that are being replaced.
        self._loop.call_soon_threadsafe(self._pool.hold)
        try:
            if adapter is None:
                name += SUFFIX
                checksum = self._store.write_weights(self.config, params, dtype=dtype, name=name)
            else:
                checksum = self._store.write_adapter(self.config, adapter, dtype=dtype, name=name)
        except OSError as err:
            raise EngineLost(
                f"config.engine.weights_dir: {self._store.folder}: cannot be written "
                f"({err.strerror}); use a folder with more room"
            ) from err
        if self._scores_files:
            # Computed while the weights are loaded.
            expected = self._score_probe(self._store.map_weights(self.config, name), probe)
        # Requests from here on accept nothing older. Set after the write, which may fail.
        self._version = version
        weights = PushedWeights(
            label=version_label(self._run, version),
            name=name,
            checksum=checksum,
            probe=self._settings.probe,
            expected=expected,
            tolerance=TOLERANCE[self._settings.dtype],
            base="" if adapter is None else self._settings.base,
            inflight=self._settings.inflight,
        )
        self._wait(self._pool.push(weights))
        self.last_push = {}
        for server in self._pool.servers:
            if server.state == "ready":
                for key, value in server.push_report.items():
                    self.last_push[key] = max(value, self.last_push.get(key, value))

    def close(self) -> None:
        """Ends the thread and the servers it started, and fails waiting requests; works twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._wait(self._close_servers(), CLOSE_LIMIT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_LIMIT_S)
            self._store.close()

    # The rest runs in the client's event loop.

    async def _open_servers(self) -> None:
        settings = self._settings
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        # No limit on connections: the servers batch whatever waits there, so requests must not wait
        # here. Idle connections close before the 5 s after which the server closes them: a request
        # on a connection that is being closed fails.
        session = self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=4.0, socket_factory=open_socket
            ),
            headers=headers,
            trust_env=False,
        )
        for url in settings.urls:
            self._pool.servers.append(settings.server(url, session, settings.limits))
        for process in settings.processes:
            server = settings.server(process.url, session, settings.limits, process)
            self._pool.servers.append(server)
        await self._pool.open(self._check_server)

    async def _check_server(self, server: Server) -> None:
        expected = architecture(config_json(self.config, self._settings.dtype))
        expected |= describe_vision(self.config.vision)
        expected |= {"tokenizer": self._settings.tokenizer, "dtype": self._settings.dtype}
        await server.check(
            expected,
            max_length=self._settings.max_length,
            rank=self._rank,
            base=self._settings.base,
        )

    async def _generate_with_retries(
        self, body: dict[str, Any], params: SamplingParams, prompt: np.ndarray
    ) -> Completion:
        # Read once: a push during the request does not make its response too old.
        oldest_version = self._version
        failure = ""
        for attempt in range(ATTEMPTS):
            server = await self._pool.choose(params.session)
            # Counts need no lock: the pool and its servers are changed in this loop alone.
            server.load += 1
            try:
                answer = await server.generate(body)
                response = read_generated(
                    answer, self._run, params.max_tokens, inflight=self._settings.inflight
                )
                # A newer version is right as well: a push came while the request waited.
                if response.version < oldest_version:
                    raise ServerFault(
                        f"sampled from version {response.version}, wanted {oldest_version}"
                    )
            except ServerFault as err:
                failure = f"{server.url}: {err}"
                self.retries += 1
                # An InputError passes instead: the request is wrong, and other servers would refuse
                # it too.
                if not isinstance(err, ResponseDiscarded):
                    self._pool.report(server, str(err))
                # The first repetition goes at once, most likely to another server.
                await asyncio.sleep(0.1 * attempt)
            else:
                server.failures = 0
                # Only requests with images have this key; the server expands their tokens itself.
                if "content_parts" in body:
                    check_expanded(server.url, answer, prompt)
                return self._cut_at_stop(response, params)
            finally:
                server.load -= 1
        raise RuntimeError(
            f"no usable response in {ATTEMPTS} attempts; the last failure: {failure}"
        )

    def _cut_at_stop(self, response: Completion, params: SamplingParams) -> Completion:
        """Ends a response with the token that completes a stop string, as `JaxEngine` does."""
        if not params.stop_strings or self._stops is None:
            return response
        end = self._stops.find_completion(response.tokens.tolist(), 0, params.stop_strings)
        if end is None:
            return response
        length = end + 1
        entropies = response.entropies
        return replace(
            response,
            tokens=response.tokens[:length],
            logprobs=response.logprobs[:length],
            finish_reason="stop",
            versions=None if response.versions is None else response.versions[:length],
            entropies=None if entropies is None else entropies[:length],
        )

    async def _close_servers(self) -> None:
        # Requests that wait for a server or an answer: their callers must not wait for ever.
        open_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        await self._pool.close()
        if self._session is not None:
            await self._session.close()

    def _wait(self, coroutine: Coroutine[Any, Any, _T], limit_s: float | None = None) -> _T:
        """Waits for a coroutine that runs in the client's loop."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(limit_s)
        except concurrent.futures.CancelledError as err:
            raise RuntimeError("the engine was closed") from err
        except BaseException:  # Ctrl-C among them
            future.cancel()
            raise
