"""The interface of engines: prompt and sampling settings in, tokens and log-probabilities out."""

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from gigpo_jax.core.errors import InputError

if TYPE_CHECKING:
    from gigpo_jax.models.vision.images import PromptImages

FinishReason = Literal["stop", "length", "abort"]
OnTokens = Callable[[list[int]], None]


class EngineLost(RuntimeError):
    """Error that ends the whole run: no engine is left."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings of one response.

    Attributes:
      temperature: Divisor of the logits; 0 takes the likeliest token.
      top_p: Probability of the nucleus, in (0, 1]: the fewest likeliest tokens that reach it are
        kept, and ties with the last one; 1 keeps all.
      top_k: Number of likeliest tokens that are kept, and ties, before `top_p`; -1 or 0 keeps all.
      max_tokens: Largest number of tokens of the response, >= 1.
      stop_token_ids: Token ids that end the response and are part of it.
      stop_strings: Strings that end the response. The token that completes one of them in the text
        is the last of the response.
      key: Random key of the request, two 32-bit words; see `request_key`. The same prompt,
        settings, key and weights give the same response, whatever other requests there are.
      session: Identity of the episode: an engine with several servers sends all its requests to
        one server, and the engine in this process continues only its own responses.

    Raises:
      InputError: A value is outside its range.
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
        # A string alone would be taken as one stop string for each of its characters. An empty
        # string is in every text, so no token completes it.
        has_stops = not isinstance(self.stop_strings, str) and all(self.stop_strings)
        checks = {
            "temperature": (
                0 <= self.temperature < math.inf,
                "must be a finite number of at least 0 (0 is greedy)",
            ),
            "top_p": (0 < self.top_p <= 1, "must be above 0 and at most 1 (1 keeps every token)"),
            "top_k": (self.top_k >= -1, "must be at least 1, or -1 to keep every token"),
            "max_tokens": (self.max_tokens >= 1, "must be at least 1"),
            "stop_strings": (has_stops, "must be a tuple of strings that are not empty"),
        }
        for key, (is_valid, rule) in checks.items():
            if not is_valid:
                raise InputError(rule, key=key, value=repr(getattr(self, key)))

    @property
    def cuts_tokens(self) -> bool:
        """Whether unlikely tokens are never drawn."""
        return self.top_p < 1 or self.top_k > 0


@dataclass(frozen=True)
class Completion:
    """One response.

    Attributes:
      tokens: [T] i32, exactly the sampled tokens, including the one that ended the response.
      logprobs: [T] f32, nats, of the distribution each token was sampled from (after temperature,
        top-k and top-p); of the untempered distribution when temperature is 0.
      finish_reason: "stop" for a stop token or string, "length" for `max_tokens`, "abort" if the
        engine failed.
      version: Version of the weights, as given to `update_weights`; the oldest of several.
      versions: [T] i32, version of the weights that sampled each token; None: they are one.
      routes: [P + T - 1, R] integers, experts of the tokens of prompt and response without the
        last one: k for each layer that has experts; None: the engine does not keep them.
      entropies: [T] f32, nats, of the distributions that the tokens were sampled from, as for
        `logprobs`; None: the engine does not keep them.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    finish_reason: FinishReason
    version: int
    versions: np.ndarray | None = None
    routes: np.ndarray | None = None
    entropies: np.ndarray | None = None


class Engine(Protocol):
    """Turns prompts into responses, batching the calls of many coroutines.

    Attributes:
      prompt_tokens, generated_tokens: Numbers of tokens of all prompts and responses so far.
    """

    prompt_tokens: int
    generated_tokens: int

    @property
    def compile_count(self) -> int:
        """Number of programs compiled so far."""

    async def generate(
        self,
        tokens: Sequence[int] | np.ndarray,
        params: SamplingParams,
        images: "PromptImages | None" = None,
        *,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Samples one response.

        Args:
          tokens: [P] i32, the prompt, P >= 1.
          params: Sampling settings.
          images: Images of the prompt, in the order of their tokens.
          on_tokens: Callback in this event loop with all tokens drawn so far, a prefix of the
            response. The engine calls it whenever it has new tokens before the end, or never.

        Raises:
          InputError: The prompt does not fit; only this request fails.
          EngineLost: The engine can give no more responses.
        """

    def update_weights(self, params: Any, version: int) -> None:
        """Sets the weights and the version of later requests.

        No response mixes two versions, except in the engines that `train.inflight` allows: there
        running requests go on with the new weights.
        """

    def end_session(self, session: tuple[int, int]) -> None:
        """Tells that no more requests of a session come; may be called from any thread."""

    def free_memory(self) -> None:
        """Frees memory of the learner's devices; no request may come before `update_weights`."""

    def close(self) -> None:
        """Frees the engine; unfinished requests fail. May be called twice."""


def request_key(seed: int, iteration: int, group: int, member: int, step: int) -> tuple[int, int]:
    """Derives the random key of one request, two u32, from its place in the run alone.

    It depends on neither the machine nor the order of requests, so that runs repeat. `member` is
    the index of the trajectory in its group, `step` of the turn in its trajectory.
    """
    # Signed, because evaluations have negative iterations. The byte order is fixed, so that every
    # machine derives the same key.
    identity = struct.pack("<5q", seed, iteration, group, member, step)
    # A hash: neighbouring requests differ by 1 in one field, and their keys must not be related.
    digest = hashlib.blake2b(identity, digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
