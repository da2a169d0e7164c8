"""The endpoint: an engine behind the HTTP interface of OpenAI, in a thread with an event loop of its own.

    GET  /v1/models                POST /v1/chat/completions    POST /v1/completions     as OpenAI's
    POST /v1/sessions {"task"}     opens a session: {"id", "base_url"}
    POST /v1/reward {"reward"}     ends the session of the request, and answers with its record
    GET  /health

A request belongs to a session if its header X-Session-Id or its path, /sessions/ID/v1/.., names one. Every path but
/health needs the key. Errors are OpenAI's JSON objects.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from gigpo_jax.endpoint.address import listening
from gigpo_jax.endpoint.answers import Answer, answer, content_of, error_of, stream
from gigpo_jax.endpoint.requests import Asked, Refused, read_chat, read_completion, read_outcome
from gigpo_jax.endpoint.sessions import Outcome, Session, as_json
from gigpo_jax.endpoint.settings import EndpointSettings
from gigpo_jax.env_bridge.base import SessionAddress
from gigpo_jax.env_bridge.boundary import MAX_REWARD
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.errors import InputError
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.sampling.base import Completion, Engine, EngineLost, OnTokens, SamplingParams, request_key
from gigpo_jax.sampling.vllm.worker.access import authorized

SESSION, ANCHOR = "X-Session-Id", "X-Anchor-State"
MAX_BODY_BYTES = 4 << 20
MAX_RUNNING = 4096  # requests that wait for the engine
MAX_TASK = 1000  # characters of the name of a task
MAX_HEADER_BYTES = 64 << 10
BODY_S = 60.0  # limit for the body of a request to arrive
START_S, STOP_S = 30.0, 5.0

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """Serves until it is closed.

    Attributes:
      url: such as http://127.0.0.1:8000.
      ended: done when it serves no longer; an EngineLost if the engine is lost or the endpoint failed.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        settings: EndpointSettings,
        *,
        on_end: Callable[[Session], None] = lambda session: None,
    ) -> None:
        """Starts to serve.

        Args:
          engine: answers; it is not closed.
          tokenizer: of its model.
          settings: how.
          on_end: called in the endpoint's thread with every session that is rewarded or abandoned.

        Raises:
          InputError: the address cannot be used.
        """
        self._engine, self._tokenizer, self._settings, self._on_end = engine, tokenizer, settings, on_end
        self._sessions: dict[str, Session] = {}
        self._opened = self._running = 0
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.ended.set_running_or_notify_cancel()  # who waits for it cannot cancel it
        self._app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._answered])
        self._add_routes(self._app.router)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="endpoint", daemon=True)
        self._thread.start()
        port = started.result(START_S)
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(settings.host, settings.host)
        self.url = f"http://{shown}:{port}"

    def open(
        self,
        task: Task,
        sampling: SamplingParams,
        key: Callable[[int], tuple[int, int]],
        *,
        max_calls: int,
        max_prompt_tokens: int,
    ) -> Session:
        """Opens a session; the arguments are those of `Session`."""
        session = Session(secrets.token_hex(12), task, sampling, key, max_calls, max_prompt_tokens)
        self._sessions[session.id] = session
        return session

    def address(self, session: Session) -> SessionAddress:
        """Where the program that plays a session finds the policy."""
        return SessionAddress(f"{self.url}/sessions/{session.id}/v1", self._settings.key, self._settings.model)

    async def end(self, session: Session) -> None:
        """Ends a session, whatever its program does: its requests fail, and afterwards nothing changes it.

        Raises:
          EngineLost: the endpoint failed.
        """
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()

        def end() -> None:
            self._sessions.pop(session.id, None)
            session.closing.set()
            done.set_result(None)

        try:
            self._loop.call_soon_threadsafe(end)
            async with asyncio.timeout(START_S):
                await asyncio.wrap_future(done)
        except (RuntimeError, TimeoutError) as err:  # the loop is closed, or about to be
            raise EngineLost("the endpoint failed") from err

    def close(self) -> None:
        """Stops serving; requests under way fail. May be called twice."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    # The rest runs in the endpoint's thread.

    def _run(self, started: "concurrent.futures.Future[int]") -> None:
        with contextlib.closing(self._loop):
            try:
                self._loop.run_until_complete(self._serve(started))
                self._finish(None)
            except Exception as err:
                if started.done():
                    log.exception("the endpoint failed")
                    self._finish(EngineLost(f"the endpoint failed: {err}"))
                else:
                    started.set_exception(err)

    def _finish(self, lost: EngineLost | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(lost) if lost else self.ended.set_result(None)

    async def _serve(self, started: "concurrent.futures.Future[int]") -> None:
        host, port = self._settings.host, self._settings.port
        runner = web.AppRunner(
            self._app,
            access_log=None,
            shutdown_timeout=STOP_S,
            handler_cancellation=True,
            max_field_size=MAX_HEADER_BYTES,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            with listening(host, port):
                await site.start()
            started.set_result(runner.addresses[0][1])
            while not self._stop.is_set():
                self._abandon(time.monotonic() - self._settings.session_timeout_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(1.0, self._settings.session_timeout_s / 4)):
                        await self._stop.wait()
        finally:
            for session in list(self._sessions.values()):
                session.closing.set()
            await runner.cleanup()

    def _abandon(self, before: float) -> None:
        """Ends sessions that have no running request and were last used before `before`."""
        for session in list(self._sessions.values()):
            if not session.running and session.used < before:
                self._sessions.pop(session.id, None)
                session.abandoned = True
                session.closing.set()
                try:
                    self._on_end(session)
                except Exception:  # it must not end the endpoint
                    log.exception("session %s was abandoned", session.id)

    def _add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/health", self._health)
        if self._settings.max_sessions:
            router.add_post("/v1/sessions", self._open)
        for prefix in ("/v1", "/sessions/{session}/v1"):
            router.add_get(f"{prefix}/models", functools.partial(self._models, alone=False))
            router.add_get(f"{prefix}/models/{self._settings.model}", functools.partial(self._models, alone=True))
            router.add_post(f"{prefix}/chat/completions", functools.partial(self._generate, chat=True))
            router.add_post(f"{prefix}/completions", functools.partial(self._generate, chat=False))
            router.add_post(f"{prefix}/reward", self._reward)

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks the key and turns every failure into an error that clients of OpenAI read."""
        try:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if request.path != "/health" and not authorized(given, self._settings.key):
                raise Refused("the key is missing or wrong", status=401, code="invalid_api_key")
            return await handler(request)
        except ConnectionError:
            raise
        except Exception as err:
            refused = error_of(err)
        headers = {"Retry-After": "1"} if refused.status in (429, 503) else None
        return web.json_response(refused.as_json(), status=refused.status, headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "sessions": len(self._sessions), "running": self._running})

    async def _models(self, request: web.Request, *, alone: bool) -> web.Response:
        card = {"id": self._settings.model, "object": "model", "created": 0, "owned_by": "gigpo_jax"}
        return web.json_response(card if alone else {"object": "list", "data": [card]})

    async def _open(self, request: web.Request) -> web.Response:
        name = (await self._body(request)).get("task")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_TASK:
            raise Refused(f"task: must be the name of the task, of 1 to {MAX_TASK} characters", param="task")
        settings = self._settings
        if len(self._sessions) >= settings.max_sessions:
            raise Refused(f"{len(self._sessions)} sessions are open; end one first", status=429, code="session_limit")
        key = functools.partial(request_key, settings.seed, 0, self._opened, 0)
        self._opened += 1
        limits = {"max_calls": settings.max_calls, "max_prompt_tokens": settings.max_prompt_tokens}
        session = self.open(Task(name, "", ""), settings.sampling, key, **limits)
        url = f"{request.url.origin()}/sessions/{session.id}/v1"
        return web.json_response({"id": session.id, "task": name, "base_url": url})

    async def _reward(self, request: web.Request) -> web.Response:
        session = self._session(request)
        if session is None:
            raise Refused(f"the request names no session, in {SESSION} or in its path")
        body = await self._body(request)
        if not session.turns:
            raise Refused("the session has no call that could be rewarded")
        outcome = Outcome(**read_outcome(body, len(session.turns), MAX_REWARD))
        if session.closing.is_set():
            raise _no_session()
        session.outcome = outcome
        try:
            self._on_end(session)
        except Exception:  # such as a full disk; the program may post the reward again
            session.outcome = None
            raise
        session.closing.set()
        self._sessions.pop(session.id, None)
        return web.json_response(as_json(session))

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        session = self._session(request)
        body = await self._body(request)
        if body.get("model") != self._settings.model:
            fix = f"this endpoint has {self._settings.model!r}"
            raise Refused(f"model={body.get('model')!r}: {fix}", status=404, code="model_not_found", param="model")
        base = self._settings.sampling if session is None else session.sampling
        known = {} if session is None else session.responses
        read = functools.partial(read_chat, tokenizer=self._tokenizer, responses=known) if chat else read_completion
        asked = read(body, base=base, recorded=session is not None)
        if not isinstance(asked.prompt, str):
            tokens = list(asked.prompt)
        elif session is None:
            tokens = self._tokenizer.encode(asked.prompt)
        else:
            tokens = session.prompt_tokens(asked.prompt, self._tokenizer)
        most = (self._settings if session is None else session).max_prompt_tokens
        if len(tokens) > most:
            limit = f"config.sampling.max_prompt_tokens={most}"
            raise Refused(f"a prompt of {len(tokens)} tokens; at most {limit}", code="context_length_exceeded")
        anchor = unquote(request.headers[ANCHOR]) if ANCHOR in request.headers else asked.observation
        respond = functools.partial(self._respond, session, asked, tokens, anchor)
        if asked.stream:
            return await stream(request, asked, self._tokenizer, self._settings.model, respond)
        return web.json_response(await respond([None] * asked.choices))

    async def _respond(
        self,
        session: Session | None,
        asked: Asked,
        tokens: list[int],
        anchor: str,
        listeners: Sequence[OnTokens | None],
    ) -> Answer:
        """Samples the answer to a request and, in a session, records it; each choice has a listener."""
        if session is None:
            completions = await self._sample(asked, tokens, listeners)
        else:
            completions = [await self._sample_recorded(session, asked, tokens, listeners[0])]
            if session.closing.is_set():
                raise _no_session()
            session.check_limit()  # others may have ended first
            text = content_of(self._tokenizer.decode(completions[0].tokens.tolist()), asked.cut)
            session.record(asked, tokens, text, completions[0], anchor=anchor, tokenizer=self._tokenizer)
        return answer(asked, tokens, completions, self._tokenizer, self._settings.model)

    async def _sample(self, asked: Asked, tokens: list[int], listeners: Sequence[OnTokens | None]) -> list[Completion]:
        """The choices of a request without a session."""
        if not (self._settings.max_sessions or self._sessions):  # a training run updates the weights
            raise Refused("no episode is played now; ask again later", status=503)
        first, second = asked.sampling.key
        keys = [(first, (second + number) % 2**32) for number in range(asked.choices)]
        requests = [self._one(tokens, replace(asked.sampling, key=key), hear) for key, hear in zip(keys, listeners)]
        work = list(map(asyncio.ensure_future, requests))
        try:
            return await asyncio.gather(*work)
        finally:
            for each in work:
                each.cancel()

    async def _sample_recorded(
        self, session: Session, asked: Asked, tokens: list[int], hear: OnTokens | None
    ) -> Completion:
        """The response to a call of a session; it ends with the session."""
        session.check_limit()
        key, began = session.key(session.calls), time.monotonic()
        session.calls += 1
        session.running += 1
        sampling = replace(asked.sampling, key=key, session=session.key(0))
        work = asyncio.ensure_future(self._one(tokens, sampling, hear))
        closing = asyncio.ensure_future(session.closing.wait())
        try:
            await asyncio.wait({work, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise _no_session()
            return work.result()
        except EngineLost as err:
            session.fault = err
            raise
        finally:
            work.cancel()
            closing.cancel()
            session.running -= 1
            session.used = time.monotonic()
            session.engine_s += session.used - began

    async def _one(self, tokens: list[int], sampling: SamplingParams, hear: OnTokens | None) -> Completion:
        if self._running >= MAX_RUNNING:
            raise Refused(f"{self._running} requests wait for the engine; ask again later", status=429)
        self._running += 1
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                completion = await self._engine.generate(tokens, sampling, on_tokens=hear)
        except TimeoutError as err:
            limit = f"config.serve.request_timeout_s={self._settings.request_timeout_s:g}"
            raise Refused(f"no response within {limit}", status=504) from err
        except InputError as err:
            raise Refused(str(err)) from err
        except EngineLost as err:
            self._finish(err)
            raise
        finally:
            self._running -= 1
        if completion.finish_reason == "abort":
            raise Refused("the engine aborted the request", status=500)
        return completion

    def _session(self, request: web.Request) -> Session | None:
        """The session of a request, None if it names none; raises Refused if there is no such one."""
        name = request.match_info.get("session", request.headers.get(SESSION))
        if name is None:
            return None
        session = self._sessions.get(name)
        if session is None:
            raise _no_session()
        session.used = time.monotonic()
        return session

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            async with asyncio.timeout(BODY_S):
                body = json.loads(await request.read())
        except TimeoutError as err:
            raise Refused(f"the request was not complete within {BODY_S:g} s", status=408) from err
        except (ValueError, RecursionError, web.RequestPayloadError) as err:
            raise Refused(f"the body is no JSON ({' '.join(str(err).split())})") from err
        if not isinstance(body, dict):
            raise Refused("the body must be a JSON object")
        return body


def _no_session() -> Refused:
    """One text for all: it has ended, was abandoned, or was never opened."""
    return Refused("no such session: it has ended, or was never opened", status=404, code="session_not_found")
