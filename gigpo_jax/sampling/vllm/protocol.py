"""Requests to a vLLM server and its answers, as pure functions that check every field they read.

Requests go to `/inference/v1/generate`, whose answers name the weight version of every token; `/v1/completions` does
not. A version's label is "RUN:NUMBER", so weights of another run, or those that a restarted server read from its
folder, are never taken for this run's.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.png import encode_png
from gigpo_jax.errors import InputError
from gigpo_jax.models.images import PromptImages, compact, picture_of
from gigpo_jax.sampling.base import Completion, FinishReason, SamplingParams

KNOWN_RELEASE = "0.32."  # the weight update differs between releases
MODE = "processed_logprobs"  # vLLM's default ignores the temperature
FIXES = {
    "dtype": "make --dtype and engine.dtype the same",
    "logprobs_mode": f"start it with --logprobs-mode {MODE}",
    "takes_seeds": "start it with --no-enable-chunked-prefill",
}
LOADING = "loading"  # the label while weights are replaced; responses that carry it are discarded
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class ServerFault(RuntimeError):
    """A server is unreachable, too slow or gives a wrong answer; another one may succeed."""


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds, and a number of restarts.

    Attributes:
      start_s: until a server that this run started answers.
      connect_s: until a server of `engine.vllm.urls` answers, at the start and after a failure.
      request_s: for one response.
      push_s: for each step of a push.
      restarts: how often one server is restarted in a run.
    """

    start_s: float
    connect_s: float
    request_s: float
    push_s: float
    restarts: int


def label(run: str, version: int) -> str:
    """Returns the name of a version on the servers."""
    return f"{run}:{version}"


def version_of(run: str, text: str) -> int | None:
    """Returns the number in a label; None for weights that this run did not push."""
    name, _, number = text.rpartition(":")
    return int(number) if name == run and number.isascii() and number.isdigit() else None


def generate_request(
    tokens: np.ndarray, params: SamplingParams, stop_ids: Sequence[int], images: PromptImages | None = None
) -> dict:
    """Returns the body that asks for one response.

    Args:
      tokens: [P] the prompt.
      params: how to sample.
      stop_ids: token ids that end the response.
      images: of the prompt. The server gets one place for each of them and expands it itself: a prompt that is expanded
        already would give wrong log-probabilities without an error. It gets images in the size at which they are
        read, so it resizes none.
    """
    sampling = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(params.top_k, 0),
        "max_tokens": params.max_tokens,
        "stop": list(params.stop_strings),
        "stop_token_ids": list(stop_ids),
        "ignore_eos": True,  # the ends are in stop_token_ids, as with the other engine
        "logprobs": 0,
        "seed": (params.key[0] << 32 | params.key[1]) & (2**63 - 1),
    }
    if images is None or not images.images:
        return {"token_ids": tokens.tolist(), "sampling_params": sampling}
    urls = [base64.b64encode(encode_png(picture_of(image))).decode() for image in images.images]
    return {
        "token_ids": compact(tokens, images).tolist(),
        "content_parts": [{"type": "image_url", "url": f"data:image/png;base64,{url}"} for url in urls],
        "return_token_ids": True,
        "sampling_params": sampling,
    }


def check_expanded(url: str, answer: Any, tokens: np.ndarray) -> None:
    """Refuses the answer of a server that read a prompt with images as other tokens than [P] `tokens`.

    Raises:
      InputError: with the fix.
    """
    found = answer.get("prompt_token_ids") if isinstance(answer, dict) else None
    if found != tokens.tolist():
        count = len(found) if isinstance(found, list) else "no"
        raise InputError(
            f"{url}: reads a prompt with images as {count} tokens that are not the {len(tokens)} of the learner; serve "
            "the folder of model.path with its own preprocessor_config.json, without --mm-processor-kwargs"
        )


def probe_request(tokens: Sequence[int]) -> dict:
    """Returns the body that asks for the log-probabilities of a prompt's tokens."""
    return {"token_ids": list(map(int, tokens)), "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0}}


def read_completion(answer: Any, run: str, limit: int) -> Completion:
    """Reads one response.

    Args:
      answer: parsed JSON.
      run: the run in accepted labels.
      limit: most tokens of the response.

    Returns:
      The response as the server ended it.

    Raises:
      ServerFault: a field is missing or inconsistent, or not all tokens are of one version of this run.
    """
    try:
        (choice,) = answer["choices"]
        tokens, content = choice["token_ids"], choice["logprobs"]["content"]
        spans, reason = choice["weight_versions"], choice["finish_reason"]
        logprobs = [float(entry["logprob"]) for entry in content]
        same = [entry["token_id"] for entry in content] == list(tokens)
        labels = {str(span["version"]) for span in spans}
        covered = sum(span["end"] - span["start"] for span in spans)
        ids = np.asarray(tokens, np.int32)
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise ServerFault(f"unexpected answer ({type(err).__name__}: {err})") from err
    if not (same and ids.ndim == 1 and 0 < ids.size <= limit and ids.min() >= 0 and covered == ids.size):
        raise ServerFault(f"inconsistent answer ({ids.size} tokens of at most {limit}, {covered} labelled)")
    if not all(math.isfinite(value) and value <= 1e-3 for value in logprobs):
        raise ServerFault("log-probabilities that are not finite")
    if not isinstance(reason, str) or reason not in REASONS:
        raise ServerFault(f"the server ended the request: {reason}")
    version = version_of(run, labels.pop()) if len(labels) == 1 else None
    if version is None:
        raise ServerFault("sampled from weights that this run did not push")
    return Completion(ids, np.asarray(logprobs, np.float32), REASONS[reason], version)


def read_probe(answer: Any, tokens: Sequence[int]) -> np.ndarray:
    """Reads the log-probabilities of a prompt.

    Args:
      answer: parsed JSON of the answer to `probe_request(tokens)`.
      tokens: [P].

    Returns:
      [P - 1] f32, nats, of each token but the first.

    Raises:
      ServerFault: they are not there.
    """
    try:
        rows = answer["prompt_logprobs"]
        values = [row[str(token)]["logprob"] for row, token in zip(rows[1:], tokens[1:], strict=True)]
        return np.asarray(values, np.float32)
    except (KeyError, TypeError, ValueError) as err:
        raise ServerFault(f"unexpected answer to the probe ({err!r})") from err


def check_description(url: str, found: dict[str, Any], wanted: dict[str, Any], *, max_length: int, rank: int) -> None:
    """Refuses a server of another model than the learner's, or with settings that give wrong numbers.

    Args:
      url: of the server.
      found: what `extension.WeightLoader.gigpo_describe` returned.
      wanted: the learner's architecture, "tokenizer" fingerprint and "dtype", under the same keys.
      max_length: prompt and response together, tokens.
      rank: of the adapter, 0 if all weights are trained.

    Raises:
      InputError: the first difference, with the fix.
    """
    for key, value in (wanted | {"logprobs_mode": MODE, "takes_seeds": True}).items():
        if found.get(key) != value:
            fix = FIXES.get(key, "serve the folder of model.path")
            raise InputError(f"{url}: its {key} is {found.get(key)!r}, the learner needs {value!r}; {fix}")
    longest, served = found.get("max_model_len", 0), found.get("adapter_rank", 0)
    if longest < max_length:
        raise InputError(
            f"{url}: takes {longest} tokens, sampling.max_prompt_tokens + sampling.max_response_tokens are "
            f"{max_length}; start it with --max-model-len {max_length}"
        )
    if not found.get("weights_dir"):
        raise InputError(f"{url}: takes no weights; start it with launch/vllm_sidecar.sh --weights-dir")
    if served < rank or (served and not rank):
        option = f"with --lora-rank {rank}" if rank else "without --lora-rank"
        raise InputError(f"{url}: its largest adapter rank is {served}, model.lora.rank={rank}; start it {option}")
