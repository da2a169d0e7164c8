"""Answers of a server are believed only if every field fits; what cannot be served is refused
before a run.
"""

import base64
import copy
from typing import Any

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.png import encode_png
from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.remote.protocol import (
    ServerFault,
    add_entropies,
    check_expanded,
    generate_request,
    parse_version,
    probe_request,
    read_generated,
    read_probe,
    version_label,
)
from gigpo_jax.engines.vllm.server import check_description
from gigpo_jax.models.vision.images import (
    expand_image_tokens,
    prepare_images,
    resize,
    target_size,
    token_grid,
)
from tests.models.shapes import VISION
from tests.models.vision.test_images import random_image

# As vLLM 0.32.0 answered /inference/v1/generate, shortened to the fields that are read.
TWO = [{"version": "ab12:6", "start": 0, "end": 1}, {"version": "ab12:7", "start": 1, "end": 3}]
ANSWER = {
    "choices": [
        {
            "finish_reason": "stop",
            "token_ids": [5, 6, 8],
            "weight_versions": [{"version": "ab12:7", "start": 0, "end": 3}],
            "logprobs": {"content": [{"token_id": t, "logprob": -0.5 * t} for t in (5, 6, 8)]},
        }
    ]
}


def changed(**fields: Any) -> dict:
    answer = copy.deepcopy(ANSWER)
    answer["choices"][0].update(fields)
    return answer


def test_a_good_answer_is_a_completion_with_its_version() -> None:
    response = read_generated(ANSWER, "ab12", 16)
    np.testing.assert_array_equal(response.tokens, [5, 6, 8])
    np.testing.assert_array_equal(response.logprobs, np.float32([-2.5, -3.0, -4.0]))
    assert (response.finish_reason, response.version) == ("stop", 7)
    assert response.entropies is None
    response = read_generated(changed(entropies=[0.5, 0.25, 0.0]), "ab12", 16)
    np.testing.assert_array_equal(response.entropies, np.float32([0.5, 0.25, 0.0]))


def with_alternatives(*entropies: float, shift: int = 1) -> dict:
    """As vLLM answers whose workers keep entropies."""
    answer = copy.deepcopy(ANSWER)
    for entry, entropy in zip(answer["choices"][0]["logprobs"]["content"], entropies, strict=True):
        alternative = {"token_id": entry["token_id"] + shift, "logprob": -entropy}
        entry["top_logprobs"] = [dict(entry), alternative]
    return answer


def test_entropies_of_vllm_are_those_of_an_alternative() -> None:
    answer = with_alternatives(0.5, 0.25, 0.0)
    # The last token of a vocabulary has the first one as alternative.
    answer["choices"][0]["logprobs"]["content"][2]["top_logprobs"][1]["token_id"] = 0
    add_entropies(answer)
    response = read_generated(answer, "ab12", 16)
    np.testing.assert_array_equal(response.entropies, np.float32([0.5, 0.25, 0.0]))


@pytest.mark.parametrize("answer", [None, ANSWER, with_alternatives(0.5, 0.25, 0.0, shift=2)])
def test_alternatives_that_are_tokens_are_no_entropies(answer: Any) -> None:
    """Those of a server without the worker's part."""
    with pytest.raises(ServerFault, match="no entropies"):
        add_entropies(copy.deepcopy(answer))


def test_in_flight_each_token_has_its_version_and_all_are_of_this_run() -> None:
    response = read_generated(changed(weight_versions=TWO), "ab12", 16, inflight=True)
    assert response.versions is not None
    assert (response.versions.tolist(), response.version) == ([6, 7, 7], 6)
    assert read_generated(ANSWER, "ab12", 16, inflight=True).versions is None
    stranger = [TWO[0], {"version": "ffff:7", "start": 1, "end": 3}]
    with pytest.raises(ServerFault, match="did not push"):
        read_generated(changed(weight_versions=stranger), "ab12", 16, inflight=True)
    # In another order the versions would belong to other tokens.
    with pytest.raises(ServerFault, match="inconsistent"):
        read_generated(changed(weight_versions=TWO[::-1]), "ab12", 16, inflight=True)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "unexpected answer"),
        ({"choices": []}, "unexpected answer"),
        (changed(logprobs=None), "unexpected answer"),
        (changed(weight_versions=None), "unexpected answer"),
        (changed(token_ids=[5, 6]), "inconsistent"),
        (changed(token_ids=[5, 6, 9]), "inconsistent"),
        (
            changed(
                token_ids=[],
                logprobs={"content": []},
                weight_versions=[{"version": "ab12:7", "start": 0, "end": 0}],
            ),
            "inconsistent",
        ),
        (changed(token_ids=[], logprobs={"content": []}, weight_versions=[]), "inconsistent"),
        (
            changed(
                token_ids=[5, 6, -8],
                logprobs={"content": [{"token_id": t, "logprob": -1} for t in (5, 6, -8)]},
            ),
            "inconsistent",
        ),
        (changed(finish_reason="abort"), "ended the request"),
        (changed(entropies=[0.5, 0.25]), "entropies that are missing"),
        (changed(entropies=[0.5, 0.25, float("nan")]), "entropies that are missing or not finite"),
        (changed(entropies=3), "unexpected answer"),
        (changed(weight_versions=[{"version": "ab12:7", "start": 0, "end": 2}]), "inconsistent"),
        (changed(weight_versions=[{"version": "default", "start": 0, "end": 3}]), "did not push"),
        (changed(weight_versions=[{"version": "ffff:7", "start": 0, "end": 3}]), "did not push"),
        (changed(weight_versions=[{"version": None, "start": 0, "end": 3}]), "did not push"),
        (changed(finish_reason=["stop"]), "ended the request"),
        (changed(weight_versions=[{"version": "loading", "start": 0, "end": 3}]), "did not push"),
        (
            changed(
                weight_versions=[
                    {"version": "ab12:7", "start": 0, "end": 4},
                    {"version": "ab12:7", "start": 4, "end": 3},
                ]
            ),
            "inconsistent",
        ),
        (changed(weight_versions=TWO), "did not push"),
        (
            changed(
                logprobs={"content": [{"token_id": t, "logprob": float("nan")} for t in (5, 6, 8)]}
            ),
            "finite",
        ),
        (
            changed(logprobs={"content": [{"token_id": t, "logprob": 2.0} for t in (5, 6, 8)]}),
            "finite",
        ),
        # Infinite in the float32 of the learner.
        (
            changed(logprobs={"content": [{"token_id": t, "logprob": -1e300} for t in (5, 6, 8)]}),
            "finite",
        ),
    ],
)
def test_anything_else_is_a_fault_of_the_server(answer: Any, says: str) -> None:
    with pytest.raises(ServerFault, match=says):
        read_generated(answer, "ab12", 16)


def test_a_response_longer_than_asked_for_is_a_fault() -> None:
    with pytest.raises(ServerFault, match="inconsistent"):
        read_generated(ANSWER, "ab12", 2)


def test_labels_are_of_one_run() -> None:
    assert parse_version("ab12", version_label("ab12", 30)) == 30
    assert parse_version("ab12", version_label("cd34", 30)) is None
    assert parse_version("ab12", "ab12:") is None
    assert parse_version("ab12", "ab12:-1") is None


def test_a_request_says_everything_that_the_server_could_choose_otherwise() -> None:
    params = SamplingParams(
        temperature=0.5, top_k=-1, max_tokens=9, stop_strings=("x",), key=(2**32 - 1, 5)
    )
    sampling = generate_request(np.array([1, 2]), params, [3])["sampling_params"]
    assert sampling == {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": 9,
        "stop": ["x"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "logprobs": 0,
        "seed": (2**31 - 1) * 2**32 + 5,  # a signed 64-bit number
    }


def test_images_are_sent_in_the_size_at_which_they_are_read() -> None:
    """One place for each, not expanded: the server expands it, and its prompt has to be the
    learner's.
    """
    images = [random_image(56, 84), random_image(90, 70)]
    tokens = np.array(
        expand_image_tokens(
            VISION, [1, 55, 2, 55, 3], [token_grid(VISION, image) for image in images]
        )
    )
    body = generate_request(tokens, SamplingParams(), [], prepare_images(VISION, tokens, images))
    assert body["token_ids"] == [1, 55, 2, 55, 3]
    assert body["return_token_ids"] is True
    urls = [part["url"].removeprefix("data:image/png;base64,") for part in body["content_parts"]]
    expected = [images[0], resize(images[1], *target_size(VISION, 90, 70))]
    assert [base64.b64decode(url) for url in urls] == [encode_png(image) for image in expected]
    check_expanded("here", {"prompt_token_ids": tokens.tolist()}, tokens)
    for found, count in ((tokens[1:].tolist(), len(tokens) - 1), (None, "no")):
        with pytest.raises(
            InputError, match=f"here: reads a prompt with images as {count} tokens that are not the"
        ):
            check_expanded("here", {"prompt_token_ids": found}, tokens)


def test_the_probe_reads_the_prompts_own_tokens() -> None:
    assert probe_request((4, 7))["sampling_params"] == {"max_tokens": 1, "prompt_logprobs": 0}
    rows = [None, {"7": {"logprob": -1.5}}, {"4": {"logprob": -0.25}}]
    np.testing.assert_array_equal(
        read_probe({"prompt_logprobs": rows}, (4, 7, 4)), np.float32([-1.5, -0.25])
    )
    for bad in ({"prompt_logprobs": rows[:2]}, {"prompt_logprobs": None}, {}, None):
        with pytest.raises(ServerFault, match="probe"):
            read_probe(bad, (4, 7, 4))


WANTED = {"hidden_size": 8, "tie_word_embeddings": True, "tokenizer": "t", "dtype": "float32"}
GOOD = WANTED | {"logprobs_mode": "processed_logprobs", "takes_seeds": True, "max_model_len": 96}
GOOD |= {"weights_dir": "/w", "adapter_rank": 0}
GOOD |= {"head_dtype": "float32", "cache_dtype": "float32", "quantization": "none"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"hidden_size": 16},
            "its hidden_size is 16, the learner needs 8; serve the folder of model.path",
        ),
        ({"tie_word_embeddings": None}, "its tie_word_embeddings is None, the learner needs True"),
        ({"tokenizer": "u"}, "its tokenizer is 'u', the learner needs 't'; serve the folder"),
        (
            {"dtype": "bfloat16"},
            "its dtype is 'bfloat16', the learner needs 'float32'; make --dtype and engine.dtype",
        ),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"head_dtype": "bfloat16"}, r"--hf-overrides '{\"head_dtype\": \"float32\"}'"),
        ({"cache_dtype": "fp8"}, "its cache_dtype is 'fp8', the learner needs 'float32'"),
        ({"quantization": "awq"}, "start it without --quantization"),
        ({"takes_seeds": False}, "start it with --no-enable-chunked-prefill"),
        ({"max_model_len": 95}, "--max-model-len 96"),
        ({"weights_dir": ""}, "--weights-dir"),
        ({"adapter_rank": 8}, r"model\.lora\.rank=0; start it without --lora-rank"),
    ],
)
def test_a_server_of_something_else_is_refused_with_the_fix(change: dict, says: str) -> None:
    check_description("http://a:1", GOOD, WANTED, max_length=96, rank=0)
    with pytest.raises(InputError, match=says):
        check_description("http://a:1", GOOD | change, WANTED, max_length=96, rank=0)


def test_a_server_for_smaller_adapters_is_refused() -> None:
    served = GOOD | {"adapter_rank": 8}
    check_description("http://a:1", served, WANTED, max_length=96, rank=8)
    with pytest.raises(
        InputError, match=r"rank is 8, model\.lora\.rank=9; start it with --lora-rank 9"
    ):
        check_description("http://a:1", served, WANTED, max_length=96, rank=9)
