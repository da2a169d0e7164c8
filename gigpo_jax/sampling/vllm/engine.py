"""Samples responses from vLLM servers beside the learner; see `sampling.base.Engine`.

A thread with an event loop of its own talks to the servers, so that requests go on while the learner computes, and
`update_weights` may be called from anywhere. A response is handed out only if the server says that every token of it
was sampled from weights of this run that are at least as new as those when it was asked for; whatever else comes back
is asked for again, of another server or after this one was mended.

Unlike the in-process engine's, responses are repeatable only to rounding: what else a server computes at the time
changes the last bits, and now and then a token.
"""

import asyncio
import concurrent.futures
import secrets
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import jax
import numpy as np
from aiohttp import web
from jax.sharding import NamedSharding, PartitionSpec

from gigpo_jax.errors import InputError
from gigpo_jax.models import lora, qwen2
from gigpo_jax.models.hf_config import config_json
from gigpo_jax.sampling.base import Completion, EngineLost, SamplingParams
from gigpo_jax.sampling.programs import mesh_of
from gigpo_jax.sampling.request import checked_prompt, stop_ids
from gigpo_jax.sampling.stopping import Decoder, StopStrings
from gigpo_jax.sampling.vllm.launch import ServerProcess
from gigpo_jax.sampling.vllm.protocol import (
    ServerFault,
    check_adapters,
    check_description,
    generate_request,
    read_completion,
)
from gigpo_jax.sampling.vllm.server import Server, Weights
from gigpo_jax.sampling.vllm.servers import Limits, Member, Say, ServerPool
from gigpo_jax.sampling.vllm.weight_store import WeightStore, serve
from gigpo_jax.sampling.vllm.worker.extension import architecture

ATTEMPTS = 5  # times one request is asked for
REQUEST_LIMIT_S = 3600.0
CLOSE_LIMIT_S = 90.0
# Nats: the mean absolute difference of a probe's log-probabilities between learner and server. Measured with eight
# probes in bfloat16 (CPU build), the right weights and one of the layers replaced by its own values in another order:
#   alfworld_tiny         right 0.015 to 0.027   wrong 1.0 to 4.3
#   0.5B, random          right 0.010 to 0.012   wrong 0.14 (the last of 24 layers) to 0.73
#   0.5B, embeddings x 5  right 0.051 to 0.068   wrong 0.69 to 4.0 (sharper distributions)
# A change far below the rounding of bfloat16, such as one update of one layer, shows in no probe: the checksum is what
# tells versions apart. In float32 the right weights differ by less than 1e-4.
TOLERANCE = {"float32": 2e-3, "bfloat16": 0.1}

_T = TypeVar("_T")


@dataclass(frozen=True)
class VllmSettings:
    """How the engine reaches its servers.

    Attributes:
      urls: of servers that somebody else started.
      processes: servers that this engine starts and ends.
      key: bearer token of all of them; "" for none.
      dtype: what they compute in, and what weights are written in.
      max_length: prompt and response together, in tokens.
      tokenizer: fingerprint of the learner's tokenizer.
      probe: [P] token ids, P >= 2, whose log-probabilities verify a push.
      base: checksum of the model's folder (`adapter.folder_checksum`), if an adapter is learnt; "" otherwise.
      pull_from: host under which the servers reach this process to pull weights; "" if they share the store's folder.
      pull_port: for that; 0 for any.
      request_s: limit of one response, s.
      push_s: limit of each step of a push, s.
      limits: of starting and restarting.
    """

    urls: tuple[str, ...]
    processes: tuple[ServerProcess, ...]
    key: str
    dtype: str
    max_length: int
    tokenizer: str
    probe: tuple[int, ...]
    base: str = ""
    pull_from: str = ""
    pull_port: int = 0
    request_s: float = 600.0
    push_s: float = 600.0
    limits: Limits = field(default_factory=lambda: Limits(600.0, 60.0, 3))


class VllmEngine:
    """An engine whose responses come from vLLM servers.

    Attributes:
      generated_tokens: tokens handed out so far.
      retries: requests that had to be asked for again.
      last_push: what the last push reported: bytes, seconds, and the probe's difference in nats (the largest ones).
    """

    def __init__(
        self,
        config: qwen2.Qwen2Config,
        params: qwen2.Params,
        *,
        settings: VllmSettings,
        store: WeightStore,
        tokenizer: Decoder | None = None,
        version: int = 0,
        say: Say = lambda _: None,
    ):
        """Connects to all servers, starting those that are ours, and gives them the parameters.

        Args:
          config: the model's shape.
          params: its parameters.
          settings: which servers, and how.
          store: where weights are written; this engine closes it.
          tokenizer: finds stop strings; None if no request has any.
          version: of the parameters.
          say: told what a person who waits would want to know.

        Raises:
          InputError: a server is not there, not usable, or serves something else.
        """
        self.config, self._settings, self._store, self._say = config, settings, store, say
        self._run, self._version = secrets.token_hex(4), version
        self._stops = StopStrings(tokenizer, config.vocab_size) if tokenizer is not None else None
        self.generated_tokens = self.retries = 0
        self.last_push: dict[str, float] = {}
        self._score = _probe_program(config, params, settings)
        adapter = lora.detach(params)
        self._rank = 0 if adapter is None else lora.rank_of(adapter)
        self._closed, self._pull_from = False, ""
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._pool: ServerPool | None = None
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
        """Programs compiled so far: the one of the probe."""
        return self._score._cache_size()

    async def generate(self, tokens: Sequence[int] | np.ndarray, params: SamplingParams) -> Completion:
        """Samples one response.

        Args:
          tokens: [P] the prompt's token ids, 1 <= P <= max_length - params.max_tokens.
          params: how to sample; requests of one session go to the same server while it is up.

        Returns:
          The response, and the version of the weights, at least that of the last `update_weights` before the call.

        Raises:
          InputError: the prompt does not fit, or a setting cannot be met; only this request fails.
          EngineLost: no server is left.
          RuntimeError: the engine is closed, or the servers failed on this request again and again.
          TimeoutError: no response within an hour.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        longest = self._settings.max_length
        prompt = checked_prompt(tokens, params, max_length=longest, longest=longest, vocab_size=self.config.vocab_size)
        request = self._generate(prompt.tolist(), params, stop_ids(params, self._stops))
        work = asyncio.run_coroutine_threadsafe(request, self._loop)
        async with asyncio.timeout(REQUEST_LIMIT_S):
            return await asyncio.wrap_future(work)

    def update_weights(self, params: qwen2.Params, version: int) -> None:
        """Gives all servers other weights and returns when each has them, or is given up.

        Requests under way are finished by the weights that they began with; those made from now on wait for the new
        ones. Blocks the calling thread.

        Args:
          params: a tree like the one given at the start; nothing of it is kept.
          version: returned with every completion.

        Raises:
          EngineLost: no server could take them.
          InputError: there is no room to write them.
        """
        name = f"{self._run}.host{jax.process_index()}.{version}.{secrets.token_hex(3)}"
        expected = np.asarray(self._score(params), np.float32)
        dtype, adapter = jax.numpy.dtype(self._settings.dtype), lora.detach(params)
        if adapter is None:
            file, checksum = self._store.write(self.config, params, dtype=dtype, name=name)
        else:
            file, checksum = self._store.write_adapter(adapter, dtype=dtype, name=name)
        self._version = version
        weights = Weights(
            run=self._run,
            version=version,
            file=file.name,
            folder=str(self._store.folder),
            pull_from=self._pull_from,
            checksum=checksum,
            probe=self._settings.probe,
            expected=expected,
            tolerance=TOLERANCE[self._settings.dtype],
            base="" if adapter is None else self._settings.base,
        )
        pool = self._pool
        assert pool is not None
        self._wait(pool.spread(weights))
        reports = [member.pushed for member in pool.members if member.state == "ready"]
        self.last_push = {key: max(report[key] for report in reports) for key in reports[0]} if reports else {}

    def close(self) -> None:
        """Ends the servers that are ours and the thread; requests that still wait fail. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._wait(self._close(), CLOSE_LIMIT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_LIMIT_S)
            members = self._pool.members if self._pool is not None else []
            self._store.close(member.server.staged_as for member in members if member.process is not None)

    # What follows runs in the client's event loop.

    async def _open(self) -> None:
        settings = self._settings
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        # No limit on connections: the servers queue, and a request that waits here would not be batched there.
        session = self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0), headers=headers, trust_env=False
        )
        if settings.pull_from:
            host = "127.0.0.1" if settings.pull_from in ("127.0.0.1", "localhost") else "0.0.0.0"
            self._runner, port = await serve(self._store, host, settings.pull_port, settings.key)
            self._pull_from = f"http://{settings.pull_from}:{port}/weights/"
        owners: list[tuple[str, ServerProcess | None]] = [(url, None) for url in settings.urls]
        owners += [(process.url, process) for process in settings.processes]
        members = [
            Member(Server(url, session, request_s=settings.request_s, push_s=settings.push_s), process)
            for url, process in owners
        ]
        pool = self._pool = ServerPool(members, settings.limits, self._say)
        try:
            await pool.open(self._check)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _check(self, member: Member) -> None:
        found = await member.server.describe()
        settings = self._settings
        check_description(
            member.server.url,
            found,
            architecture=architecture(config_json(self.config, settings.dtype)),
            tokenizer=settings.tokenizer,
            dtype=settings.dtype,
            max_length=settings.max_length,
            pull_from=self._pull_from,
        )
        check_adapters(member.server.url, found, self._rank)
        member.server.weights_dir = str(found.get("weights_dir", ""))
        # A seed of a request's own together with chunked prefill kills the engine of the CPU build.
        member.seeded = not (found.get("device") == "cpu" and found.get("chunked_prefill"))

    async def _generate(self, tokens: list[int], params: SamplingParams, ends: list[int]) -> Completion:
        wanted, trouble, pool = self._version, "", self._pool
        assert pool is not None
        for attempt in range(ATTEMPTS):
            member = await pool.choose(params.session)
            member.load += 1
            try:
                answer = await member.server.generate(generate_request(tokens, params, ends, member.seeded))
                response = read_completion(answer, self._run, params.max_tokens)
                if response.version < wanted:
                    raise ServerFault(f"it sampled from version {response.version}, wanted is {wanted}")
            except ServerFault as err:
                trouble = f"{member.server.url}: {err}"
                self.retries += 1
                pool.suspect(member, str(err))
                await asyncio.sleep(0.1 * attempt)
            else:
                member.relapses, member.served = 0, member.served + 1
                response = self._cut(response, params)
                self.generated_tokens += response.tokens.size
                return response
            finally:
                member.load -= 1
        raise RuntimeError(f"asked {ATTEMPTS} times without a usable response; the last: {trouble}")

    def _cut(self, response: Completion, params: SamplingParams) -> Completion:
        """Ends a response with the token that completes a stop string, as the other engine does."""
        if not params.stop_strings or self._stops is None:
            return response
        end = self._stops.completed_at(response.tokens.tolist(), 0, params.stop_strings)
        if end is None or end + 1 == response.tokens.size:
            return response if end is None else Completion(response.tokens, response.logprobs, "stop", response.version)
        return Completion(response.tokens[: end + 1], response.logprobs[: end + 1], "stop", response.version)

    async def _close(self) -> None:
        me = asyncio.current_task()
        if self._pool is not None:
            await self._pool.close()
        others = [task for task in asyncio.all_tasks() if task is not me]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def _wait(self, work: Coroutine[Any, Any, _T], limit_s: float | None = None) -> _T:
        """Runs something in the client's loop and waits for it; everything in there has limits of its own."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except concurrent.futures.CancelledError as err:
            raise RuntimeError("the engine was closed") from err
        except BaseException:  # Ctrl-C among them
            future.cancel()
            raise


def _probe_program(config: qwen2.Qwen2Config, params: qwen2.Params, settings: VllmSettings) -> Any:
    """A jitted function params -> [P - 1] f32, log-probabilities of the probe's tokens."""
    probe = jax.numpy.asarray(settings.probe, jax.numpy.int32)

    def score(params: qwen2.Params) -> jax.Array:
        logits = qwen2.logits(config, params, probe[None], dtype=jax.numpy.dtype(settings.dtype))[0, :-1]
        return jax.numpy.take_along_axis(jax.nn.log_softmax(logits), probe[1:, None], axis=1)[:, 0]

    mesh = mesh_of(params)
    return jax.jit(score, out_shardings=None if mesh is None else NamedSharding(mesh, PartitionSpec()))
