"""The interface of engines: a prompt and sampling settings in, tokens and their log-probabilities out."""

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.models.images import PromptImages

FinishReason = Literal["stop", "length", "abort"]
OnTokens = Callable[[list[int]], None]


class EngineLost(RuntimeError):
    """No engine is left: the run must stop, not only an episode."""


@dataclass(frozen=True)
class SamplingParams:
    """How one response is drawn.

    Attributes:
      temperature: divides the logits; 0 takes the likeliest token.
      top_p: keeps the fewest likeliest tokens whose probabilities sum to this, in (0, 1], and ties with the last one; 1
        keeps all.
      top_k: keeps this many likeliest tokens, and ties, before `top_p`; -1 or 0 keeps all.
      max_tokens: limit of the response, >= 1.
      stop_token_ids: the response ends with the first of these, which is part of it.
      stop_strings: the response ends with the token that completes one of these in its text; it is part of it.
      key: two 32-bit words, the random key of the request; see `request_key`. The same prompt, settings, key and
        weights give the same response, whatever other requests there are.
      session: the same for all requests of an episode: an engine of several servers sends them to one.

    Raises:
      InputError: a value outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 512
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    key: tuple[int, int] = (0, 0)
    session: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature={self.temperature}: must be a finite number of at least 0 (0 is greedy)")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: must be above 0 and at most 1 (1 keeps every token)")
        if self.top_k < -1:
            raise InputError(f"top_k={self.top_k}: must be at least 1, or -1 to keep every token")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens={self.max_tokens}: must be at least 1")
        if isinstance(self.stop_strings, str) or not all(self.stop_strings):
            raise InputError(f"stop_strings={self.stop_strings!r}: must be a tuple of strings that are not empty")


@dataclass(frozen=True)
class Completion:
    """One response.

    Attributes:
      tokens: [T] i32, exactly the sampled tokens, with the one that ended the response.
      logprobs: [T] f32, nats, of the distribution each token was sampled from (after temperature, top-k and top-p);
        of the untempered distribution when temperature is 0.
      finish_reason: "stop" for a stop token or string, "length" for `max_tokens`, "abort" if the engine failed.
      version: of the weights, as given to `update_weights`.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    finish_reason: FinishReason
    version: int


class Engine(Protocol):
    """Turns prompts into responses; many coroutines call `generate` at once and the engine batches them."""

    async def generate(
        self,
        tokens: Sequence[int] | np.ndarray,
        params: SamplingParams,
        images: PromptImages | None = None,
        *,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Samples one response to the prompt `tokens` [P], P >= 1; `images` are those of its places.

        `on_tokens` is called in this event loop with all tokens drawn so far, as often as the engine gives some before
        the response is complete: these begin the response. An engine may never call it.

        Raises:
          InputError: the prompt does not fit; only this request fails.
          EngineLost: the engine can give no more responses.
        """

    def update_weights(self, params: Any, version: int) -> None:
        """Sets the weights of later requests, and their version; no response mixes two."""

    def free_memory(self) -> None:
        """Frees memory of the learner's devices until the next `update_weights`; no request may come before that."""

    def close(self) -> None:
        """Frees the engine; unfinished requests fail. May be called twice."""


def request_key(seed: int, iteration: int, group: int, member: int, step: int) -> tuple[int, int]:
    """The random key of one request, two u32; it does not depend on the machine or the order of requests.

    Evaluations use negative iterations. `member` is the trajectory's index in its group, `step` that of the turn.
    """
    digest = hashlib.blake2b(struct.pack("<5q", seed, iteration, group, member, step), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
