"""One request inside an engine, and how its response reaches the coroutine that waits for it."""

import asyncio
import functools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.models.images import PromptImages, read_images
from gigpo_jax.models.vision_config import VisionConfig
from gigpo_jax.sampling.base import Completion, FinishReason, OnTokens, SamplingParams
from gigpo_jax.sampling.stopping import StopStrings

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Weights:
    """Parameters and the version that completions carry; compared by identity."""

    params: Any
    version: int


@dataclass(eq=False)
class Request:
    """One request and the tokens drawn so far; only the engine's thread changes it, except `cancelled`.

    Attributes:
      prompt: [P] i32.
      stop_ids: token ids that end the response, including those that spell a stop string.
      weights: used from the first token to the last.
      future: the result, in the caller's event loop.
      images: of the prompt; None for a model of text alone.
      on_tokens: as for `Engine.generate`.
      features: [F, D] of these; None: they were not encoded yet.
      logprobs: of the drawn tokens, nats, in pieces.
      cancelled: whether the caller stopped waiting.
    """

    prompt: np.ndarray
    params: SamplingParams
    stop_ids: list[int]
    weights: Weights
    future: "asyncio.Future[Completion]"
    images: PromptImages | None = None
    on_tokens: OnTokens | None = None
    features: np.ndarray | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    cancelled: bool = False

    @property
    def content(self) -> np.ndarray:
        """[P], equal up to some token for prompts that are equal up to there, images included."""
        if self.images is None:
            return self.prompt
        images, index = self.images.images, self.images.layout.index
        digests = np.frombuffer(b"".join(image.digest for image in images), np.int64)[::2]  # half of each
        hashes = np.repeat(digests, [math.prod(image.grid) for image in images])
        return np.where(index < 0, self.prompt, np.append(hashes, 0)[index])

    def take(self, tokens: np.ndarray, logprobs: np.ndarray, stops: StopStrings | None) -> Completion | None:
        """Adds drawn tokens [n] i32, n >= 1, and their log-probabilities [n] f32.

        Returns:
          The response if it is finished, without what was drawn after the token that completed a stop string.
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
        if self.on_tokens is not None:
            _call(self.future.get_loop(), functools.partial(self.on_tokens, list(self.tokens)))
        return None

    def reject(self, message: str, cause: Exception | None) -> None:
        """Fails the request from another thread."""

        def fail() -> None:
            if not self.future.done():
                error = RuntimeError(message)
                error.__cause__ = cause
                self.future.set_exception(error)

        _call(self.future.get_loop(), fail)

    def _completion(self, reason: FinishReason, length: int) -> Completion:
        tokens, logprobs = np.array(self.tokens[:length], np.int32), np.concatenate(self.logprobs)[:length]
        return Completion(tokens=tokens, logprobs=logprobs, finish_reason=reason, version=self.weights.version)


def checked_prompt(
    tokens: Sequence[int] | np.ndarray, params: SamplingParams, *, max_length: int, longest: int, vocab_size: int
) -> np.ndarray:
    """A prompt as an array [P] i32.

    `max_length` limits prompt and response together, `longest` the prompt, in tokens.

    Raises:
      InputError: it is empty, too long, or has ids outside the vocabulary.
    """
    prompt, limit = np.asarray(tokens), min(max_length - params.max_tokens, longest)
    if prompt.ndim != 1 or not 1 <= prompt.size <= limit:
        raise InputError(
            f"prompt of {prompt.size} tokens: with max_tokens={params.max_tokens} and max_length={max_length} "
            f"the engine takes 1 to {max(limit, 0)}; shorten the prompt or the response"
        )
    if prompt.min() < 0 or prompt.max() >= vocab_size:
        worst = prompt.min() if prompt.min() < 0 else prompt.max()
        raise InputError(f"prompt has token id {worst}: the model has ids 0 to {vocab_size - 1}")
    return prompt.astype(np.int32)


def checked_images(vision: VisionConfig | None, prompt: np.ndarray, images: PromptImages | None) -> PromptImages | None:
    """The images of a prompt, none of them included; None for a model of text alone.

    Raises:
      InputError: the model reads text alone, or the images are those of another prompt.
    """
    if vision is None:
        if images is not None:
            raise InputError("this model reads text alone; use a model with a vision tower, such as Qwen2.5-VL")
        return None
    images = read_images(vision, prompt, ()) if images is None else images
    places = prompt == vision.image_token
    if not np.array_equal(places, images.layout.index >= 0):
        raise InputError(
            f"a prompt of {len(prompt)} tokens has {places.sum()} places of images that are not those of its images; "
            "give the images that `read_images` gives for these tokens"
        )
    return images


def stop_ids(params: SamplingParams, stops: StopStrings | None) -> list[int]:
    """The token ids that end a response: those of the settings, and tokens that are exactly a stop string.

    Raises:
      InputError: there are stop strings but no tokenizer.
    """
    if not params.stop_strings:
        return list(dict.fromkeys(params.stop_token_ids))
    if stops is None:
        raise InputError(f"stop_strings={params.stop_strings}: this engine has no tokenizer; give it one")
    single = [stops.single_token(stop) for stop in params.stop_strings]
    return list(dict.fromkeys([*params.stop_token_ids, *(token for token in single if token is not None)]))


def resolve(responses: Iterable[tuple[Request, Completion]]) -> None:
    """Sets results from another thread, with one call for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[Request, Completion]]] = {}
    for request, completion in responses:
        loops.setdefault(request.future.get_loop(), []).append((request, completion))
    for loop, batch in loops.items():
        _call(loop, functools.partial(_set_results, batch))


def _set_results(batch: list[tuple[Request, Completion]]) -> None:
    for request, completion in batch:
        if not request.future.done():
            request.future.set_result(completion)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # the loop is closed
        log.debug("a response came after its event loop was closed")
