"""One reply in the making, and how it gets back to the coroutine that waits for it."""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gigpo_jax.sampling.base import Completion, FinishReason, SamplingParams
from gigpo_jax.sampling.stopping import StopStrings

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Weights:
    """Parameters and the version that completions carry; compared by identity."""

    params: Any
    version: int


@dataclass(eq=False)
class Request:
    """One reply in the making; only the engine's thread touches it, but for `cancelled`.

    Attributes:
      prompt: [P] i32.
      params: how to sample.
      stop_ids: token ids that end the reply, those that spell a stop string included.
      weights: what it is sampled from, from its first token to its last.
      loop: the event loop that waits.
      future: what it waits for.
      tokens: drawn so far.
      logprobs: of those, in pieces.
      cancelled: nobody waits any more.
    """

    prompt: np.ndarray
    params: SamplingParams
    stop_ids: list[int]
    weights: Weights
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Completion]"
    tokens: list[int] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    cancelled: bool = False

    def take(self, tokens: np.ndarray, logprobs: np.ndarray, stops: StopStrings | None) -> Completion | None:
        """Adds drawn tokens.

        Args:
          tokens: [n] i32, n >= 1.
          logprobs: [n] f32.
          stops: finds stop strings; None if there are none.

        Returns:
          The reply if it is finished, without what was drawn after the token that completed a stop string.
        """
        start = len(self.tokens)
        self.tokens += tokens.tolist()
        self.logprobs.append(logprobs)
        if self.params.stop_strings and stops is not None:
            end = stops.completed_at(self.tokens, start, self.params.stop_strings)
            if end is not None:
                return self._completion("stop", end + 1)
        if self.tokens[-1] in self.stop_ids:
            return self._completion("stop", len(self.tokens))
        if len(self.tokens) >= self.params.max_tokens:
            return self._completion("length", len(self.tokens))
        return None

    def reject(self, message: str, cause: Exception | None) -> None:
        """Fails the request from another thread."""

        def fail() -> None:
            if not self.future.done():
                error = RuntimeError(message)
                error.__cause__ = cause
                self.future.set_exception(error)

        _call(self.loop, fail)

    def _completion(self, reason: FinishReason, length: int) -> Completion:
        tokens, logprobs = np.array(self.tokens[:length], np.int32), np.concatenate(self.logprobs)[:length]
        return Completion(tokens=tokens, logprobs=logprobs, finish_reason=reason, version=self.weights.version)


def resolve(replies: Iterable[tuple[Request, Completion]]) -> None:
    """Hands replies over from another thread, all those of one event loop in one call."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[Request, Completion]]] = {}
    for request, completion in replies:
        loops.setdefault(request.loop, []).append((request, completion))
    for loop, batch in loops.items():
        _call(loop, functools.partial(_set_results, batch))


def _set_results(batch: list[tuple[Request, Completion]]) -> None:
    for request, completion in batch:
        if not request.future.done():
            request.future.set_result(completion)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # that loop is closed: nobody waits there any more
        log.debug("a reply came after its event loop was closed")
