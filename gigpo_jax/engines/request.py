"""Requests inside an engine, and the delivery of their responses to coroutines."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, FinishReason, SamplingParams
from gigpo_jax.engines.stopping import StopStrings

if TYPE_CHECKING:
    from gigpo_jax.models.vision.images import PromptImages

Session = tuple[int, int]


# eq=False: `==` of two trees of arrays has no single truth value.
@dataclass(frozen=True, eq=False)
class Weights:
    """Parameters of the engine and their version; compared by identity."""

    params: Any
    version: int


@dataclass(frozen=True)
class Snapshot:
    """Samples responses from the weights of one version, with two of the methods of an `Engine`."""

    generate: Callable[..., Awaitable[Completion]]
    end_session: Callable[[Session], None]


@dataclass(eq=False)
class Request:
    """One request and the tokens drawn so far.

    Only the engine's thread changes it; callers may cancel `future`.

    Attributes:
      prompt: [P] i32.
      params: Sampling settings.
      stop_ids: Token ids that end the response, including those that spell a stop string.
      weights: Weights of the next tokens of the response.
      future: Result; cancelled if the caller stops waiting.
      images: Images of the prompt; None for a text-only model.
      on_tokens: Callback of `Engine.generate`, for the engine's thread.
      features: [F, D], features of the images that are read; None: not encoded yet, or no image.
      first_feature: Index of the first of them among the features of all images.
      tokens: Tokens drawn so far.
      scores: Log-probabilities of these tokens, and entropies if the engine keeps them, [1 or 2, n]
        f32, nats, an array for each device call.
      versions: Versions of the weights of these tokens, likewise.
    """

    prompt: np.ndarray
    params: SamplingParams
    stop_ids: list[int]
    weights: Weights
    future: "Future[Completion]"
    images: "PromptImages | None" = None
    on_tokens: Callable[[list[int]], Any] | None = None
    features: np.ndarray | None = None
    first_feature: int = 0
    tokens: list[int] = field(default_factory=list)
    scores: list[np.ndarray] = field(default_factory=list)
    versions: list[np.ndarray] = field(default_factory=list)

    def append_tokens(
        self, tokens: np.ndarray, scores: np.ndarray, stops: StopStrings | None
    ) -> Completion | None:
        """Adds drawn tokens, [n] i32 with n >= 1, and their scores, [1 or 2, n] f32.

        Returns:
          The response if it is finished, cut after the token that completed a stop string;
          otherwise None.
        """
        # A device call draws several tokens, so the response may have ended before the last one.
        start = len(self.tokens)
        self.tokens += tokens.tolist()
        self.scores.append(scores)
        self.versions.append(np.full(len(tokens), self.weights.version, np.int32))
        if self.params.stop_strings and stops is not None:
            end = stops.find_completion(self.tokens, start, self.params.stop_strings)
            if end is not None:
                return self._completion("stop", end + 1)
        # The device ends a slot at a stop id and at the limit, so only the last token can be
        # either. It does not see stop strings, which are therefore examined first.
        if self.tokens[-1] in self.stop_ids:
            return self._completion("stop", len(self.tokens))
        if len(self.tokens) >= self.params.max_tokens:
            return self._completion("length", len(self.tokens))
        if self.on_tokens is not None:
            # A copy: this thread appends to the list while the event loop reads the report.
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.on_tokens(list(self.tokens))
        return None

    @property
    def cancelled(self) -> bool:
        """Whether the caller stopped waiting."""
        return self.future.cancelled()

    def resolve(self, completion: Completion) -> None:
        """Sets the result, from the engine's thread."""
        # False: the caller has cancelled. From here on it cannot.
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(completion)

    def reject(self, message: str, cause: Exception | None) -> None:
        """Fails the request, from the engine's thread."""
        if self.future.set_running_or_notify_cancel():
            error = RuntimeError(message)
            error.__cause__ = cause
            self.future.set_exception(error)

    def _completion(self, reason: FinishReason, length: int) -> Completion:
        logprobs, *entropies = np.concatenate(self.scores, axis=1)[:, :length]
        versions = np.concatenate(self.versions)[:length]
        # They only grow.
        is_mixed = versions[0] != versions[-1]
        return Completion(
            tokens=np.array(self.tokens[:length], np.int32),
            logprobs=logprobs,
            finish_reason=reason,
            version=int(versions[0]),
            versions=versions if is_mixed else None,
            entropies=entropies[0] if entropies else None,
        )


def check_prompt(
    tokens: Sequence[int] | np.ndarray,
    params: SamplingParams,
    *,
    max_length: int,
    max_prompt: int,
    vocab_size: int,
) -> np.ndarray:
    """Converts a prompt to an array [P] i32; `max_length` is of prompt and response together.

    Raises:
      InputError: The prompt is empty, too long, or has ids outside the vocabulary.
    """
    prompt = np.asarray(tokens)
    limit = min(max_length - params.max_tokens, max_prompt)
    if prompt.ndim != 1 or not 1 <= prompt.size <= limit:
        raise InputError(
            f"{prompt.size} tokens; with max_tokens={params.max_tokens} and "
            f"max_length={max_length} the engine takes 1 to {max(limit, 0)}",
            key="prompt",
            fix="shorten the prompt or the response",
        )
    # The device would not fail for an id outside: its gather is clamped to the last row.
    for token in (prompt.min(), prompt.max()):
        if not 0 <= token < vocab_size:
            raise InputError(
                f"token id {token}; the model has ids 0 to {vocab_size - 1}", key="prompt"
            )
    return prompt.astype(np.int32)


def select_stop_ids(
    params: SamplingParams, stops: StopStrings | None, limit: int | None = None
) -> list[int]:
    """Lists, each once, the token ids that end a response: the settings' and whole stop strings.

    Raises:
      InputError: There are stop strings but no tokenizer, or more than `limit` ids.
    """
    if params.stop_strings and stops is None:
        raise InputError(
            "this engine has no tokenizer",
            key="stop_strings",
            value=params.stop_strings,
            fix="give it one",
        )
    ids = dict.fromkeys(params.stop_token_ids)
    # A stop string of one token ends the slot on the device. All others are only seen by the host,
    # after a device call that may have drawn tokens beyond the end.
    for stop in params.stop_strings:
        token = stops.single_token(stop) if stops is not None else None
        if token is not None:
            ids[token] = None
    if limit is not None and len(ids) > limit:
        raise InputError(
            f"{len(ids)} ids, an engine takes {limit}", key="stop_token_ids", fix="give fewer"
        )
    return list(ids)
