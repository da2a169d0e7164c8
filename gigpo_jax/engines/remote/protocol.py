"""Requests to a server, and its answers: pure functions that check every field they read.

Requests go to `/inference/v1/generate`, whose answers name the weight version of every token;
`/v1/completions` does not. A version's label is "RUN:NUMBER", so that weights of another run, or
those that a restarted server read from its folder, are never confused with this run's.
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.png import encode_png
from gigpo_jax.engines.base import Completion, FinishReason, SamplingParams
from gigpo_jax.models.vision.images import PromptImages, collapse_image_tokens, restore_pixels

LOADING = "loading"  # the label while weights are replaced; responses that carry it are discarded
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class ServerFault(RuntimeError):
    """A server is unreachable, too slow or answers wrongly; another server may succeed."""


class ResponseDiscarded(ServerFault):
    """A response that does not count although its server works."""


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds, and a number of restarts.

    Attributes:
      start_s: Time in which a server that this run starts must answer.
      connect_s: Time in which a server of `engine.urls` must answer, at the start and after a
        failure.
      request_s: Limit for one response.
      push_s: Limit for each step of a push.
      restarts: Largest number of restarts of one server in a run.
    """

    start_s: float
    connect_s: float
    request_s: float
    push_s: float
    restarts: int


def version_label(run: str, version: int) -> str:
    """Returns the name of a version on the servers."""
    return f"{run}:{version}"


def parse_version(run: str, text: str) -> int | None:
    """Returns the number in a label; None for weights that this run did not push."""
    # `int` alone would also take signs, spaces, underscores and digits of other scripts.
    label_run, _, number = text.rpartition(":")
    if label_run != run or not (number.isascii() and number.isdigit()):
        return None
    return int(number)


def generate_request(
    tokens: np.ndarray,
    params: SamplingParams,
    stop_ids: Sequence[int],
    images: PromptImages | None = None,
) -> dict:
    """Returns the body of a request for one response.

    Args:
      tokens: [P], the prompt.
      params: Sampling settings.
      stop_ids: Token ids that end the response.
      images: Images of the prompt.
    """
    sampling = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(params.top_k, 0),
        "max_tokens": params.max_tokens,
        "stop": list(params.stop_strings),
        "stop_token_ids": list(stop_ids),
        "ignore_eos": True,  # the ends are in stop_token_ids, as with the other engine
        # 0 alternatives: the log-probability of the sampled token alone.
        "logprobs": 0,
        # vLLM takes signed numbers of 64 bits.
        "seed": (params.key[0] << 32 | params.key[1]) & (2**63 - 1),
    }
    if images is None or not images.images:
        return {"token_ids": tokens.tolist(), "sampling_params": sampling}
    # The server gets images in the size at which they are read, so it resizes none.
    content_parts = []
    for image in images.images:
        encoded = base64.b64encode(encode_png(restore_pixels(image))).decode()
        content_parts.append({"type": "image_url", "url": f"data:image/png;base64,{encoded}"})
    return {
        # One token for each image, which the server expands: a prompt that is expanded already
        # would give wrong log-probabilities without an error.
        "token_ids": collapse_image_tokens(tokens, images).tolist(),
        "content_parts": content_parts,
        "return_token_ids": True,
        "sampling_params": sampling,
    }


def check_expanded(url: str, answer: Any, tokens: np.ndarray) -> None:
    """Checks that a server's tokens of a prompt with images are the tokens [P] of the learner.

    Raises:
      InputError: The tokens differ.
    """
    server_tokens = answer.get("prompt_token_ids") if isinstance(answer, dict) else None
    if server_tokens != tokens.tolist():
        count = len(server_tokens) if isinstance(server_tokens, list) else "no"
        raise InputError(
            f"reads a prompt with images as {count} tokens that are not the {len(tokens)} of the "
            "learner",
            key=url,
            fix="serve the folder of model.path with its own preprocessor_config.json, without "
            "--mm-processor-kwargs",
        )


def probe_request(tokens: Sequence[int]) -> dict:
    """Returns the body of a request for a prompt's log-probabilities."""
    return {
        "token_ids": list(map(int, tokens)),
        "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0},
    }


def read_generated(answer: Any, run: str, limit: int, *, inflight: bool = False) -> Completion:
    """Reads one response.

    Args:
      answer: Parsed JSON.
      run: Name of the run in accepted labels.
      limit: Largest number of tokens of the response.
      inflight: Whether the tokens may have several versions.

    Returns:
      The response as the server ended it.

    Raises:
      ServerFault: A field is missing or inconsistent, or the tokens have several versions or one of
        another run.
    """
    try:
        # Unpacking fails for any other number of choices.
        (choice,) = answer["choices"]
        tokens = choice["token_ids"]
        content = choice["logprobs"]["content"]
        spans = choice["weight_versions"]
        reason = choice["finish_reason"]
        # In the learner's dtype: a number beyond its range is infinite there.
        logprobs = _read_floats(entry["logprob"] for entry in content)
        has_equal_ids = [entry["token_id"] for entry in content] == list(tokens)
        # With engine.entropies; see `add_entropies` for vLLM.
        entropies = _read_floats(choice.get("entropies", ()))
        versions = [parse_version(run, str(span["version"])) for span in spans]
        starts = [int(span["start"]) for span in spans]
        ends = [int(span["end"]) for span in spans]
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        ids = np.asarray(tokens, np.int32)
        numbers = np.asarray([version or 0 for version in versions], np.int32)
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise ServerFault(f"unexpected answer ({type(err).__name__}: {err})") from err
    # The learner trains on these tokens: each must have its own log-probability and a version.
    is_sequence = ids.ndim == 1 and 0 < ids.size <= limit and ids.min() >= 0
    # Side by side, from the first token to the last.
    is_labelled = [*starts, ids.size] == [0, *ends] and all(length > 0 for length in lengths)
    if not (has_equal_ids and is_sequence and is_labelled):
        raise ServerFault(
            f"inconsistent answer ({ids.size} tokens of at most {limit}, {sum(lengths)} labelled)"
        )
    if len(entropies) not in (0, ids.size) or not np.isfinite(entropies).all():
        raise ServerFault("entropies that are missing or not finite")
    # Rounding may lift the log-probability of a certain token a little above 0.
    if not (np.isfinite(logprobs) & (logprobs <= 1e-3)).all():
        raise ServerFault("log-probabilities that are not finite")
    if not isinstance(reason, str) or reason not in REASONS:
        raise ServerFault(f"the server ended the request: {reason}")
    is_mixed = len(set(versions)) > 1
    if None in versions or (is_mixed and not inflight):
        raise ServerFault("sampled from weights that this run did not push")
    token_versions = np.repeat(numbers, lengths)
    return Completion(
        ids,
        logprobs,
        REASONS[reason],
        int(token_versions.min()),
        versions=token_versions if is_mixed else None,
        entropies=entropies if entropies.size else None,
    )


def _read_floats(values: Iterable[Any]) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray([float(value) for value in values], np.float32)


def add_entropies(answer: Any) -> None:
    """Moves the entropies of a vLLM server's answer to where `read_generated` reads them.

    `engines.vllm.worker.entropies` says where they are in the answer.

    Raises:
      ServerFault: The answer does not have them.
    """
    try:
        for choice in answer["choices"]:
            entropies = []
            for entry in choice["logprobs"]["content"]:
                token = entry["token_id"]
                # The first entry is the token itself.
                _, alternative = entry["top_logprobs"]
                if alternative["token_id"] not in (token + 1, 0):
                    raise ValueError("an alternative that is a token")
                entropies.append(-float(alternative["logprob"]))
            choice["entropies"] = entropies
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise ServerFault(f"no entropies in the answer ({err!r:.200})") from err


def read_probe(answer: Any, tokens: Sequence[int]) -> np.ndarray:
    """Reads the log-probabilities of a prompt.

    Args:
      answer: Parsed JSON of the answer to `probe_request(tokens)`.
      tokens: [P], the prompt.

    Returns:
      [P - 1] f32, nats, the log-probabilities of all tokens but the first.

    Raises:
      ServerFault: The answer does not have them.
    """
    try:
        rows = answer["prompt_logprobs"]
        values = []
        # The first row is null: nothing precedes the first token.
        for row, token in zip(rows[1:], tokens[1:], strict=True):
            values.append(row[str(token)]["logprob"])
        return _read_floats(values)
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise ServerFault(f"unexpected answer to the probe ({err!r:.200})") from err


def check_served(
    url: str,
    description: Any,
    expected: dict[str, Any],
    *,
    max_length: int,
    fixes: dict[str, str],
) -> None:
    """Checks that a server has the learner's model, and settings that give right numbers.

    Args:
      url: Address of the server.
      description: Description by the server.
      expected: Values that the learner needs, by the same keys.
      max_length: Largest number of tokens of prompt and response together.
      fixes: Remedies by key.

    Raises:
      ServerFault: The description is no JSON object.
      InputError: A value differs.
    """
    if not isinstance(description, dict):
        raise ServerFault(f"unexpected description ({description!r:.200})")
    for key, value in expected.items():
        if description.get(key) != value:
            fix = fixes.get(key, "serve the folder of model.path")
            raise InputError(
                f"its {key} is {description.get(key)!r}, the learner needs {value!r}",
                key=url,
                fix=fix,
            )
    server_length = description.get("max_model_len", 0)
    if type(server_length) is not int or server_length < max_length:
        raise InputError(
            f"takes {server_length!r:.40} tokens, sampling.max_prompt_tokens + "
            f"sampling.max_response_tokens are {max_length}",
            key=url,
            fix=fixes["max_model_len"],
        )
