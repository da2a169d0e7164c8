"""Sampling of the responses to HTTP requests, with limits and errors that clients understand."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, Engine, EngineLost, OnTokens, SamplingParams
from gigpo_jax.engines.endpoint.calls import SessionCall
from gigpo_jax.engines.endpoint.requests import PolicyRequest, RequestError
from gigpo_jax.engines.endpoint.sessions import EndpointSession

MAX_RUNNING = 4096  # requests that wait for the engine


class EngineSampler:
    """Samples responses from an engine in the endpoint's event loop.

    Attributes:
      running: Number of requests that wait for the engine.
    """

    def __init__(
        self, engine: Engine, timeout_s: float, on_lost: Callable[[EngineLost], None]
    ) -> None:
        """Stores the engine.

        Args:
          engine: Engine that answers.
          timeout_s: Limit for one response, s.
          on_lost: Callback for the loss of the engine.
        """
        self.running = 0
        self._engine = engine
        self._timeout_s = timeout_s
        self._on_lost = on_lost

    async def sample_choices(
        self,
        request: PolicyRequest,
        tokens: list[int],
        listeners: Sequence[OnTokens | None],
    ) -> list[Completion]:
        """Samples the choices of a request without a session, with a listener for each."""
        first_word, second_word = request.sampling.key
        tasks = []
        for choice, listener in enumerate(listeners):
            # Choices differ by their keys. Choice 0 is the response of the same request with n=1.
            key = (first_word, (second_word + choice) % 2**32)
            sampling = replace(request.sampling, key=key)
            tasks.append(asyncio.ensure_future(self._sample(tokens, sampling, listener)))
        try:
            return await asyncio.gather(*tasks)
        finally:
            # If one choice fails or the client goes away, the others free their slots.
            for task in tasks:
                task.cancel()

    async def sample_call(
        self,
        session: EndpointSession,
        call: SessionCall,
        request: PolicyRequest,
        tokens: list[int],
        listener: OnTokens | None,
    ) -> Completion:
        """Samples the response to a call of a session.

        Sampling ends early if the session ends, or if another request that repeats the call
        replaces it.
        """
        key = session.key(call.index)
        start = time.monotonic()
        session.running += 1
        # The key of call 0 identifies the episode: all of its calls go to one server.
        sampling = replace(request.sampling, key=key, session=session.key(0))
        # Three tasks, because the session or the call may end first: a late response must not be
        # recorded. `finally` cancels them, which frees the engine's slot.
        response = asyncio.ensure_future(self._sample(tokens, sampling, listener))
        ends = [asyncio.ensure_future(end.wait()) for end in (session.closing, call.replaced)]
        try:
            await asyncio.wait({response, *ends}, return_when=asyncio.FIRST_COMPLETED)
            session.check_open(call)
            return response.result()
        except EngineLost as err:
            session.fault = err
            raise
        finally:
            for task in (response, *ends):
                task.cancel()
            session.running -= 1
            session.last_use = time.monotonic()
            session.engine_s += session.last_use - start

    def end_session(self, session: EndpointSession) -> None:
        """Tells the engine that a session has ended."""
        self._engine.end_session(session.key(0))

    async def _sample(
        self, tokens: list[int], sampling: SamplingParams, listener: OnTokens | None
    ) -> Completion:
        if self.running >= MAX_RUNNING:
            raise RequestError(
                f"{self.running} requests wait for the engine; ask again later", status=429
            )
        self.running += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                completion = await self._engine.generate(tokens, sampling, on_tokens=listener)
        except TimeoutError as err:
            limit = f"config.engine.request_timeout_s={self._timeout_s:g}"
            raise RequestError(f"no response within {limit}", status=504) from err
        except InputError as err:
            raise RequestError(str(err)) from err
        except EngineLost as err:
            self._on_lost(err)
            raise
        finally:
            self.running -= 1
        if completion.finish_reason == "abort":
            raise RequestError("the engine aborted the request", status=500)
        return completion
