"""The endpoint: an engine behind OpenAI's HTTP interface, in a thread with its own event loop.

    GET  /v1/models                POST /v1/chat/completions    POST /v1/completions     as OpenAI's
    POST /v1/sessions {"task"}     opens a session: {"id", "base_url"}
    POST /v1/reward {"reward"}     ends the session of the request and returns its record
    GET  /health

A request belongs to a session if its header X-Session-Id or its path, /sessions/ID/v1/.., names
one. Every path but /health needs the key.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from gigpo_jax.engines.base import Engine, EngineLost, OnTokens, SamplingParams, request_key
from gigpo_jax.engines.endpoint.answers import Answer, build_answer, cut_text, stream_answer
from gigpo_jax.engines.endpoint.requests import (
    PolicyRequest,
    RequestError,
    count_characters,
    read_chat_request,
    read_completion_request,
    read_outcome,
)
from gigpo_jax.engines.endpoint.sampler import EngineSampler
from gigpo_jax.engines.endpoint.sessions import (
    EndpointSession,
    SessionOutcome,
    session_not_found,
    session_record,
)
from gigpo_jax.engines.endpoint.settings import EndpointSettings
from gigpo_jax.engines.endpoint.web import Site, read_body
from gigpo_jax.env_bridge.base import SessionAddress
from gigpo_jax.env_bridge.boundary import MAX_REWARD
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.models.text.tokenizer import Tokenizer

SESSION_HEADER = "X-Session-Id"
ANCHOR_HEADER = "X-Anchor-State"
MAX_BODY_BYTES = 4 << 20
MAX_CHARACTERS_PER_TOKEN = 64  # of a prompt, on average; a text of any language has fewer
MAX_TASK = 1000  # characters of the name of a task
START_S = 30.0

log = logging.getLogger(__name__)


class Endpoint:
    """Serves until it is closed.

    Attributes:
      url: Address, such as http://127.0.0.1:8000.
      ended: Future that is done when the endpoint no longer serves. Its exception is an EngineLost
        if the engine is lost or the endpoint failed.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        settings: EndpointSettings,
        *,
        on_end: Callable[[EndpointSession], None] = lambda session: None,
    ) -> None:
        """Starts to serve.

        Args:
          engine: Engine that answers; it is not closed.
          tokenizer: Tokenizer of the model.
          settings: Address, limits and sampling settings.
          on_end: Callback, in the endpoint's thread, for every session that is rewarded or
            abandoned.

        Raises:
          InputError: The address cannot be used.
        """
        self._tokenizer = tokenizer
        self._settings = settings
        self._on_end = on_end
        self._sampler = EngineSampler(engine, settings.request_timeout_s, self._finish)
        self._sessions: dict[str, EndpointSession] = {}
        self._opened_sessions = 0
        # One thread: the calls of a session keep their order. Rendering and encoding a long prompt
        # in the event loop would stop all other requests.
        self._encoder = concurrent.futures.ThreadPoolExecutor(1, "endpoint-encoder")
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.ended.set_running_or_notify_cancel()  # a waiter cannot cancel it
        self._site = Site(settings.host, settings.port, settings.key, max_body=MAX_BODY_BYTES)
        self._add_routes(self._site.application.router)
        # A loop of its own, so that requests are answered while the caller's thread computes.
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run_thread, args=(started,), name="endpoint", daemon=True
        )
        self._thread.start()
        # Raises what the thread raised, such as an address in use.
        self.url = started.result(START_S)

    def open_session(
        self,
        task: Task,
        sampling: SamplingParams,
        key: Callable[[int], tuple[int, int]],
        *,
        max_calls: int,
        max_prompt_tokens: int,
    ) -> EndpointSession:
        """Opens a session; the arguments are those of `EndpointSession`."""
        session = EndpointSession(
            secrets.token_hex(12), task, sampling, key, max_calls, max_prompt_tokens
        )
        # A run opens sessions from another thread. One assignment is atomic, and the endpoint's
        # thread iterates over copies.
        self._sessions[session.id] = session
        return session

    def session_address(self, session: EndpointSession) -> SessionAddress:
        """Returns the policy's address for the program of a session."""
        url = f"{self.url}/sessions/{session.id}/v1"
        return SessionAddress(url, self._settings.key, self._settings.model)

    async def end_session(self, session: EndpointSession) -> None:
        """Ends a session and fails its requests.

        Afterwards nothing changes the session.

        Raises:
          EngineLost: The endpoint failed.
        """
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A running future cannot be cancelled with its waiter, so `set_result` never raises.
        ended.set_running_or_notify_cancel()

        # In the endpoint's thread, which alone records calls: once this has run, none is added.
        def end_in_loop() -> None:
            self._close_session(session)
            ended.set_result(None)

        try:
            self._loop.call_soon_threadsafe(end_in_loop)
            async with asyncio.timeout(START_S):
                await asyncio.wrap_future(ended)
        except (RuntimeError, TimeoutError) as err:  # the loop is closed, or about to be
            raise EngineLost("the endpoint failed") from err

    def close(self) -> None:
        """Stops serving; requests under way fail. May be called twice."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    # The rest runs in the endpoint's thread.

    def _run_thread(self, started: "concurrent.futures.Future[str]") -> None:
        with contextlib.closing(self._loop):
            try:
                self._loop.run_until_complete(self._serve(started))
                self._finish(None)
            except Exception as err:
                # Before the start the constructor waits for the error, later only `ended` can tell
                # it.
                if started.done():
                    log.exception("the endpoint failed")
                    self._finish(EngineLost(f"the endpoint failed: {err}"))
                else:
                    started.set_exception(err)

    def _finish(self, lost: EngineLost | None) -> None:
        # The first reason counts: the loss of the engine is followed by the end of the thread.
        if self.ended.done():
            return
        if lost is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(lost)

    async def _serve(self, started: "concurrent.futures.Future[str]") -> None:
        async with self._site.listen() as url:
            try:
                started.set_result(url)
                while not self._stop.is_set():
                    self._abandon_sessions(time.monotonic() - self._settings.session_timeout_s)
                    interval_s = min(1.0, self._settings.session_timeout_s / 4)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(interval_s):
                            await self._stop.wait()
            finally:
                # First, because the end of `listen` waits for requests under way, which end with
                # their session.
                for session in list(self._sessions.values()):
                    session.closing.set()
        # Not waited for: a prompt that is being encoded cannot be interrupted.
        self._encoder.shutdown(wait=False, cancel_futures=True)

    def _abandon_sessions(self, deadline: float) -> None:
        """Ends idle sessions last used before `deadline`.

        A session with a running request is not idle.
        """
        for session in list(self._sessions.values()):
            if session.running or session.last_use >= deadline:
                continue
            session.abandoned = True
            self._close_session(session)
            try:
                self._on_end(session)
            except Exception:  # a failing callback must not end the endpoint
                log.exception("session %s was abandoned", session.id)

    def _close_session(self, session: EndpointSession) -> None:
        """Fails the requests of a session and those to come."""
        self._sessions.pop(session.id, None)
        session.closing.set()
        self._sampler.end_session(session)

    def _add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/health", self._get_health)
        if self._settings.max_sessions:
            router.add_post("/v1/sessions", self._post_session)
        for prefix in ("/v1", "/sessions/{session}/v1"):
            router.add_get(f"{prefix}/models", self._get_models)
            router.add_get(f"{prefix}/models/{self._settings.model}", self._get_model)
            router.add_post(f"{prefix}/chat/completions", self._post_chat)
            router.add_post(f"{prefix}/completions", self._post_completion)
            router.add_post(f"{prefix}/reward", self._post_reward)

    async def _get_health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"status": "ok", "sessions": len(self._sessions), "running": self._sampler.running}
        )

    async def _get_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model_card()]})

    async def _get_model(self, request: web.Request) -> web.Response:
        return web.json_response(self._model_card())

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self._settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "gigpo_jax",
        }

    async def _post_session(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        task_name = body.get("task")
        if not isinstance(task_name, str) or not 0 < len(task_name) <= MAX_TASK:
            raise RequestError(
                f"task: must be the name of the task, of 1 to {MAX_TASK} characters", param="task"
            )
        settings = self._settings
        # Nothing waits between this check and `open_session`, so that two requests cannot both take
        # the last place.
        if len(self._sessions) >= settings.max_sessions:
            raise RequestError(
                f"{len(self._sessions)} sessions are open; end one first",
                status=429,
                code="session_limit",
            )
        # The address that the client used: it may be that of a tunnel. From the header that was
        # checked: the target of a request may name another host.
        base_url = f"{request.scheme}://{request.headers['Host']}"
        key = functools.partial(request_key, settings.seed, 0, self._opened_sessions, 0)
        self._opened_sessions += 1
        session = self.open_session(
            Task(task_name, "", ""),
            settings.sampling,
            key,
            max_calls=settings.max_calls,
            max_prompt_tokens=settings.max_prompt_tokens,
        )
        url = f"{base_url}/sessions/{session.id}/v1"
        return web.json_response({"id": session.id, "task": task_name, "base_url": url})

    async def _post_reward(self, request: web.Request) -> web.Response:
        session = self._find_session(request)
        if session is None:
            raise RequestError(f"the request names no session, in {SESSION_HEADER} or in its path")
        body = await read_body(request)
        if not session.turns:
            reason = f"; its last call was refused ({session.refusal})" if session.refusal else ""
            raise RequestError(f"the session has no call that could be rewarded{reason}")
        outcome = SessionOutcome(**read_outcome(body, len(session.turns), MAX_REWARD))
        # The body may have arrived after the end of the session.
        if session.closing.is_set():
            raise session_not_found()
        # `_on_end` writes the record, which includes the outcome.
        session.outcome = outcome
        try:
            self._on_end(session)
        except Exception:  # such as a full disk; the program may post the reward again
            session.outcome = None
            raise
        self._close_session(session)
        return web.json_response(session_record(session))

    async def _post_chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _post_completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        session = self._find_session(request)
        try:
            return await self._answer_call(request, session, chat=chat)
        except RequestError as err:
            if session is not None:
                session.refusal = f"{err.status}: {err}"
            raise

    async def _answer_call(
        self, request: web.Request, session: EndpointSession | None, *, chat: bool
    ) -> web.StreamResponse:
        body = await read_body(request)
        self._check_model(body)
        self._check_characters(body, session)
        policy_request, tokens = await asyncio.get_running_loop().run_in_executor(
            self._encoder, functools.partial(self._read_and_encode, body, session, chat=chat)
        )
        anchor = policy_request.observation
        if ANCHOR_HEADER in request.headers:
            anchor = unquote(request.headers[ANCHOR_HEADER])
        respond = functools.partial(self._respond, session, policy_request, tokens, anchor)
        if policy_request.stream:
            return await stream_answer(
                request, policy_request, self._tokenizer, self._settings.model, respond
            )
        return web.json_response(await respond([None] * policy_request.choices))

    def _check_model(self, body: dict[str, Any]) -> None:
        if body.get("model") != self._settings.model:
            raise RequestError(
                f"model={body.get('model')!r}: this endpoint has {self._settings.model!r}",
                status=404,
                code="model_not_found",
                param="model",
            )

    def _check_characters(self, body: dict[str, Any], session: EndpointSession | None) -> None:
        """Refuses a prompt that is far too long.

        It does so before the work of rendering and encoding.
        """
        limits = self._settings if session is None else session
        max_characters = limits.max_prompt_tokens * MAX_CHARACTERS_PER_TOKEN
        fields = [body.get("messages"), body.get("tools"), body.get("prompt")]
        characters = count_characters(fields)
        if characters > max_characters:
            raise RequestError(
                f"a prompt of {characters} characters; at most {MAX_CHARACTERS_PER_TOKEN} for each "
                f"token of config.sampling.max_prompt_tokens={limits.max_prompt_tokens}",
                code="context_length_exceeded",
            )

    def _read_and_encode(
        self, body: dict[str, Any], session: EndpointSession | None, *, chat: bool
    ) -> tuple[PolicyRequest, list[int]]:
        """Reads a request and encodes its prompt.

        It runs in the encoder's thread.
        """
        policy_request = self._read_request(body, session, chat=chat)
        return policy_request, self._encode_prompt(policy_request, session)

    def _read_request(
        self, body: dict[str, Any], session: EndpointSession | None, *, chat: bool
    ) -> PolicyRequest:
        sampling = self._settings.sampling if session is None else session.sampling
        recorded = session is not None
        if not chat:
            return read_completion_request(body, sampling, recorded=recorded)
        sampled_texts = {} if session is None else session.sampled_texts
        return read_chat_request(
            body, self._tokenizer, sampling, recorded=recorded, sampled_texts=sampled_texts
        )

    def _encode_prompt(
        self, policy_request: PolicyRequest, session: EndpointSession | None
    ) -> list[int]:
        prompt = policy_request.prompt
        if not isinstance(prompt, str):
            tokens = list(prompt)
        elif session is None:
            tokens = self._tokenizer.encode(prompt)
        else:
            tokens = session.prompt_tokens(prompt, self._tokenizer)
        limits = self._settings if session is None else session
        if len(tokens) > limits.max_prompt_tokens:
            limit = f"config.sampling.max_prompt_tokens={limits.max_prompt_tokens}"
            raise RequestError(
                f"a prompt of {len(tokens)} tokens; at most {limit}", code="context_length_exceeded"
            )
        return tokens

    async def _respond(
        self,
        session: EndpointSession | None,
        policy_request: PolicyRequest,
        tokens: list[int],
        anchor: str,
        listeners: Sequence[OnTokens | None],
    ) -> Answer:
        """Samples the answer to a request.

        In a session it records the call. Every choice has a listener.
        """
        if session is None:
            # During training only sessions keep the engine's weights as they are.
            if not (self._settings.max_sessions or self._sessions):
                raise RequestError("no episode is played now; ask again later", status=503)
            completions = await self._sampler.sample_choices(policy_request, tokens, listeners)
        else:
            completion = await self._sampler.sample_call(
                session, policy_request, tokens, listeners[0]
            )
            if session.closing.is_set():
                raise session_not_found()
            session.check_limit()  # other calls may have ended first
            text = self._tokenizer.decode(completion.tokens.tolist())
            content = cut_text(text, policy_request.cut)
            session.record_call(
                policy_request,
                tokens,
                content,
                completion,
                anchor=anchor,
                tokenizer=self._tokenizer,
            )
            completions = [completion]
        return build_answer(
            policy_request, tokens, completions, self._tokenizer, self._settings.model
        )

    def _find_session(self, request: web.Request) -> EndpointSession | None:
        """Returns the session that a request names, or None.

        Raises:
          RequestError: There is no such session.
        """
        name = request.match_info.get("session", request.headers.get(SESSION_HEADER))
        if name is None:
            return None
        session = self._sessions.get(name)
        if session is None:
            raise session_not_found()
        session.last_use = time.monotonic()
        return session
