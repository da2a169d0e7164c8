"""The endpoint: an engine behind OpenAI's HTTP interface, in a thread with its own event loop.

    GET  /v1/models                POST /v1/chat/completions    POST /v1/completions     as OpenAI's
    POST /v1/responses             as OpenAI's              POST /v1/messages       as Anthropic's
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

from gigpo_jax.engines.base import (
    Completion,
    Engine,
    EngineLost,
    OnTokens,
    SamplingParams,
    request_key,
)
from gigpo_jax.engines.endpoint.answers import Reply, cut_text, read_reply
from gigpo_jax.engines.endpoint.calls import CallIdentity, identify_call
from gigpo_jax.engines.endpoint.interfaces import INTERFACES, PolicyCall, RequestReader
from gigpo_jax.engines.endpoint.messages import messages_error
from gigpo_jax.engines.endpoint.requests import RequestError, read_outcome
from gigpo_jax.engines.endpoint.responses import remember_chat
from gigpo_jax.engines.endpoint.sampler import EngineSampler
from gigpo_jax.engines.endpoint.sessions import (
    EndpointSession,
    SessionOutcome,
    session_not_found,
    session_record,
)
from gigpo_jax.engines.endpoint.settings import EndpointSettings
from gigpo_jax.engines.endpoint.streams import stream_answer
from gigpo_jax.engines.endpoint.web import Site, read_body
from gigpo_jax.env_bridge.boundary import MAX_REWARD
from gigpo_jax.env_bridge.harnesses import SessionAddress
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.models.text.tokenizer import Tokenizer

SESSION_HEADER = "X-Session-Id"
ANCHOR_HEADER = "X-Anchor-State"
MAX_BODY_BYTES = 4 << 20
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
        self._reader = RequestReader(tokenizer, settings)
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.ended.set_running_or_notify_cancel()  # a waiter cannot cancel it
        self._site = Site(
            settings.host,
            settings.port,
            settings.key,
            max_body=MAX_BODY_BYTES,
            error_body=_error_body,
        )
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
        """Opens a session; the arguments are as for `EndpointSession`."""
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
        """Ends a session and fails its requests; afterwards nothing changes the session.

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
        self._reader.close()

    def _abandon_sessions(self, deadline: float) -> None:
        """Ends sessions last used before `deadline` that have no running request."""
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
            for interface in INTERFACES:
                handler = functools.partial(self._post_call, interface)
                router.add_post(f"{prefix}/{interface}", handler)
            router.add_post(f"{prefix}/messages/count_tokens", self._count_tokens)
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
        repeats = session.describe_repeats()
        outcome = SessionOutcome(**read_outcome(body, len(session.turns), MAX_REWARD, repeats))
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

    async def _post_call(self, interface: str, request: web.Request) -> web.StreamResponse:
        session = self._find_session(request)
        try:
            return await self._answer_call(interface, request, session)
        except RequestError as err:
            if session is not None:
                session.refusal = f"{err.status}: {err}"
            raise

    async def _answer_call(
        self, interface: str, request: web.Request, session: EndpointSession | None
    ) -> web.StreamResponse:
        body = await read_body(request)
        call = await self._reader.read(interface, body, session)
        anchor = call.request.observation
        if ANCHOR_HEADER in request.headers:
            anchor = unquote(request.headers[ANCHOR_HEADER])
        form = self._reader.make_form(interface, call, body)
        identity = identify_call(interface, await request.read(), anchor, request.headers)

        async def respond(listeners: Sequence[OnTokens | None]) -> list[Reply]:
            replies = await self._respond(session, call, anchor, identity, listeners)
            if session is not None and interface == "responses":
                session.chats[form.id] = remember_chat(body, call.chat, replies[0])
            return replies

        if call.request.stream:
            return await stream_answer(request, form, self._tokenizer, respond)
        return web.json_response(form.answer(await respond([None] * call.request.choices)))

    async def _count_tokens(self, request: web.Request) -> web.Response:
        session = self._find_session(request)
        call = await self._reader.read("messages", await read_body(request), session)
        return web.json_response({"input_tokens": len(call.tokens)})

    async def _respond(
        self,
        session: EndpointSession | None,
        policy_call: PolicyCall,
        anchor: str,
        identity: CallIdentity,
        listeners: Sequence[OnTokens | None],
    ) -> list[Reply]:
        """Samples the replies to a request, with a listener each, and records a session's call."""
        if session is None:
            # During training only sessions keep the engine's weights as they are.
            if not (self._settings.max_sessions or self._sessions):
                raise RequestError("no episode is played now; ask again later", status=503)
            completions = await self._sampler.sample_choices(
                policy_call.request, policy_call.tokens, listeners
            )
        else:
            completion = await self._sample_call(
                session, policy_call, anchor, identity, listeners[0]
            )
            completions = [completion]
        return [
            read_reply(policy_call.request, policy_call.tokens, completion, self._tokenizer)
            for completion in completions
        ]

    async def _sample_call(
        self,
        session: EndpointSession,
        policy_call: PolicyCall,
        anchor: str,
        identity: CallIdentity,
        listener: OnTokens | None,
    ) -> Completion:
        """Samples and records a call of a session; a repeated call gets the recorded response."""
        # Before anything waits: the number of the call, which gives its random key, is that of its
        # arrival.
        call = session.begin_call(identity)
        if call.completion is not None:
            return call.completion
        completion = await self._sampler.sample_call(
            session, call, policy_call.request, policy_call.tokens, listener
        )
        session.check_open(call)
        session.check_limit()  # other calls may have ended first
        text = self._tokenizer.decode(completion.tokens.tolist())
        content = cut_text(text, policy_call.request.cut)
        session.record_call(
            policy_call.request,
            policy_call.tokens,
            content,
            completion,
            anchor=anchor,
            tokenizer=self._tokenizer,
        )
        call.completion = completion
        return completion

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


def _error_body(request: web.Request, error: RequestError) -> dict[str, Any]:
    """Returns the body of an error in the form of the request's interface."""
    if "/v1/messages" in request.path:
        return messages_error(error)
    return error.as_json()
