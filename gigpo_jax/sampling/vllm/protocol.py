"""What is said to a vLLM server and what its answers mean: pure functions, checked on every field that is used.

Requests go to `/inference/v1/generate`, whose answers name the weights behind every single token; `/v1/completions`
does not. Versions travel as labels "RUN:NUMBER", so that weights of another run, or those that a restarted server read
from its folder, are never taken for ours.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.base import Completion, FinishReason, SamplingParams

KNOWN_VERSIONS = ("0.32",)  # the releases whose answers were tried; the weight update differs between releases
SIDECAR = "launch/vllm_sidecar.sh --help"
LOADING = "loading"  # the label while weights are being replaced: nothing sampled then counts
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class ServerFault(RuntimeError):
    """A server that is away, too slow, or answers nonsense; another one may do better."""


def label(run: str, version: int) -> str:
    """How a version is called on the servers."""
    return f"{run}:{version}"


def version_of(run: str, text: str) -> int | None:
    """The number in a label; None for weights that this run did not push."""
    name, _, number = text.rpartition(":")
    return int(number) if name == run and number.isascii() and number.isdigit() else None


def generate_request(tokens: Sequence[int], params: SamplingParams, stop_ids: Sequence[int], seeded: bool) -> dict:
    """The body for one response.

    Args:
      tokens: [P] the prompt.
      params: how to sample.
      stop_ids: token ids that end the response, those that spell a stop string included.
      seeded: whether to send the request's own seed.
    """
    sampling: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(params.top_k, 0),
        "max_tokens": params.max_tokens,
        "stop": list(params.stop_strings),
        "stop_token_ids": list(stop_ids),
        "ignore_eos": True,  # what ends a response is in stop_token_ids, as for the other engine
        "logprobs": 0,
    }
    if seeded:
        sampling["seed"] = (params.key[0] << 32 | params.key[1]) & (2**63 - 1)
    return {"token_ids": list(map(int, tokens)), "sampling_params": sampling}


def probe_request(tokens: Sequence[int]) -> dict:
    """The body that asks for the log-probabilities of a prompt's own tokens."""
    return {"token_ids": list(map(int, tokens)), "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0}}


def read_completion(answer: Any, run: str, limit: int) -> Completion:
    """Reads one response.

    Args:
      answer: the JSON that came.
      run: whose labels are ours.
      limit: the most tokens that it may have.

    Returns:
      The response as the server ended it.

    Raises:
      ServerFault: a field is missing or impossible, or the weights behind it are not ours, or not the same throughout.
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
        raise ServerFault(f"its answer is not what this client knows ({type(err).__name__}: {err})") from err
    if not (same and ids.ndim == 1 and 0 < ids.size <= limit and ids.min() >= 0 and covered == ids.size):
        raise ServerFault(
            f"its answer does not fit together ({ids.size} tokens of at most {limit}, {covered} labelled)"
        )
    if not all(math.isfinite(value) and value <= 1e-3 for value in logprobs):
        raise ServerFault("its answer has log-probabilities that are not finite")
    if not isinstance(reason, str) or reason not in REASONS:
        raise ServerFault(f"it gave the request up ({reason})")
    version = version_of(run, labels.pop()) if len(labels) == 1 else None
    if version is None:
        raise ServerFault("it sampled from weights that this run did not give it")
    return Completion(ids, np.asarray(logprobs, np.float32), REASONS[reason], version)


def read_probe(answer: Any, tokens: Sequence[int]) -> np.ndarray:
    """Reads the log-probabilities of a prompt.

    Args:
      answer: the JSON that came for `probe_request(tokens)`.
      tokens: [P].

    Returns:
      [P - 1] f32, nats, of each token but the first.

    Raises:
      ServerFault: the answer is not one.
    """
    try:
        rows = answer["prompt_logprobs"]
        values = [row[str(token)]["logprob"] for row, token in zip(rows[1:], tokens[1:], strict=True)]
        return np.asarray(values, np.float32)
    except (KeyError, TypeError, ValueError) as err:
        raise ServerFault(f"its answer to the probe is not what this client knows ({err!r})") from err


def check_release(url: str, release: str) -> None:
    """Refuses a release of vLLM whose answers were never tried.

    Raises:
      InputError: names those that work.
    """
    if not any(release == known or release.startswith(known + ".") for known in KNOWN_VERSIONS):
        known = ", ".join(f"{version}.x" for version in KNOWN_VERSIONS)
        raise InputError(f"{url}: vLLM {release}; known to work: {known}; install one of these for the server")


def check_description(
    url: str,
    found: dict[str, Any],
    *,
    architecture: dict[str, Any],
    tokenizer: str,
    dtype: str,
    max_length: int,
    pull_from: str,
) -> None:
    """Refuses a server that serves something else than what is learnt, or in a way that gives wrong numbers.

    Args:
      url: of the server.
      found: what `extension.WeightLoader.gigpo_describe` said.
      architecture: of the learner's model (`extension.architecture`).
      tokenizer: fingerprint of the learner's tokenizer.
      dtype: what the config asks for.
      max_length: prompt and response together.
      pull_from: the address that it is to pull weights from; "" if it is to read them from a folder.

    Raises:
      InputError: the first thing that differs, with the fix.
    """
    theirs = found.get("architecture", {})
    other = [f"{name}={theirs.get(name)} (learner: {value})" for name, value in architecture.items() if
             theirs.get(name) != value]  # fmt: skip
    if other:
        raise InputError(f"{url}: serves another model than the learner's: {', '.join(other)}; use its model.path")
    if found.get("tokenizer") != tokenizer:
        raise InputError(f"{url}: its tokenizer is not the learner's; serve the folder that model.path names")
    if found.get("dtype") != dtype:
        raise InputError(f"{url}: computes in {found.get('dtype')}, config.engine.dtype={dtype!r}; make them the same")
    if found.get("logprobs_mode") != "processed_logprobs":
        raise InputError(
            f"{url}: logprobs_mode={found.get('logprobs_mode')!r} ignores the temperature; start it with "
            "--logprobs-mode processed_logprobs"
        )
    if found.get("max_model_len", 0) < max_length:
        raise InputError(
            f"{url}: takes {found.get('max_model_len')} tokens, "
            f"sampling.max_prompt_tokens + sampling.max_response_tokens "
            f"are {max_length}; start it with --max-model-len {max_length}"
        )
    if not found.get("weights_dir"):
        raise InputError(f"{url}: takes no weights; start it with launch/vllm_sidecar.sh --weights-dir")
    theirs = str(found.get("weights_url", ""))
    if pull_from and not (theirs and pull_from.startswith(theirs)):
        raise InputError(
            f"{url}: pulls weights from {theirs or 'nowhere'}, the learner offers {pull_from}; make its --weights-url "
            "and engine.vllm.weights_host, engine.vllm.weights_port the same"
        )


def check_adapters(url: str, found: dict[str, Any], rank: int) -> None:
    """Refuses a server that cannot take the adapter that is learnt, or takes nothing but adapters and gets all weights.

    Args:
      url: of the server.
      found: what the worker extension said of itself.
      rank: of the adapter, 0 if all weights are learnt.

    Raises:
      InputError: with the fix.
    """
    takes = int(found.get("adapter_rank", 0))
    if takes < rank:
        what = f"takes adapters of rank {takes} at most" if takes else "was started without adapters"
        raise InputError(f"{url}: {what}, config.model.lora.rank={rank}; start it with --lora-rank {rank}: {SIDECAR}")
    if takes and not rank:
        raise InputError(
            f"{url}: was started for adapters and keeps its model, config.model.lora.rank=0 replaces all weights; "
            f"start it without --lora-rank: {SIDECAR}"
        )
