"""Answers of a server are believed only if every field fits; what cannot be served is refused before a run."""

import copy
from typing import Any

import numpy as np
import pytest

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.base import SamplingParams
from gigpo_jax.sampling.vllm.protocol import (
    ServerFault,
    check_description,
    check_release,
    generate_request,
    label,
    probe_request,
    read_completion,
    read_probe,
    version_of,
)

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
    response = read_completion(ANSWER, "ab12", 16)
    np.testing.assert_array_equal(response.tokens, [5, 6, 8])
    np.testing.assert_array_equal(response.logprobs, np.float32([-2.5, -3.0, -4.0]))
    assert (response.finish_reason, response.version) == ("stop", 7)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "not what this client knows"),
        ({"choices": []}, "not what this client knows"),
        (changed(logprobs=None), "not what this client knows"),
        (changed(weight_versions=None), "not what this client knows"),
        (changed(token_ids=[5, 6]), "fit together"),
        (changed(token_ids=[5, 6, 9]), "fit together"),
        (
            changed(
                token_ids=[], logprobs={"content": []}, weight_versions=[{"version": "ab12:7", "start": 0, "end": 0}]
            ),
            "fit together",
        ),
        (
            changed(token_ids=[5, 6, -8], logprobs={"content": [{"token_id": t, "logprob": -1} for t in (5, 6, -8)]}),
            "fit together",
        ),
        (changed(finish_reason="abort"), "gave the request up"),
        (changed(weight_versions=[{"version": "ab12:7", "start": 0, "end": 2}]), "fit together"),
        (changed(weight_versions=[{"version": "default", "start": 0, "end": 3}]), "did not give"),
        (changed(weight_versions=[{"version": "ffff:7", "start": 0, "end": 3}]), "did not give"),
        (changed(weight_versions=[{"version": None, "start": 0, "end": 3}]), "did not give"),
        (changed(finish_reason=["stop"]), "gave the request up"),
        (changed(weight_versions=[{"version": "loading", "start": 0, "end": 3}]), "did not give"),
        (
            changed(
                weight_versions=[
                    {"version": "ab12:6", "start": 0, "end": 1},
                    {"version": "ab12:7", "start": 1, "end": 3},
                ]
            ),
            "did not give",
        ),
        (changed(logprobs={"content": [{"token_id": t, "logprob": float("nan")} for t in (5, 6, 8)]}), "finite"),
        (changed(logprobs={"content": [{"token_id": t, "logprob": 2.0} for t in (5, 6, 8)]}), "finite"),
    ],
)
def test_anything_else_is_a_fault_of_the_server(answer: Any, says: str) -> None:
    with pytest.raises(ServerFault, match=says):
        read_completion(answer, "ab12", 16)


def test_a_response_longer_than_asked_for_is_a_fault() -> None:
    with pytest.raises(ServerFault, match="fit together"):
        read_completion(ANSWER, "ab12", 2)


def test_labels_are_of_one_run() -> None:
    assert version_of("ab12", label("ab12", 30)) == 30
    assert version_of("ab12", label("cd34", 30)) is None
    assert version_of("ab12", "ab12:") is None
    assert version_of("ab12", "ab12:-1") is None


def test_a_request_says_everything_that_the_server_could_choose_otherwise() -> None:
    params = SamplingParams(temperature=0.5, top_k=-1, max_tokens=9, stop_strings=("x",), key=(2**32 - 1, 5))
    sampling = generate_request([1, 2], params, [3], seeded=True)["sampling_params"]
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
    assert "seed" not in generate_request([1, 2], params, [3], seeded=False)["sampling_params"]


def test_the_probe_reads_the_prompts_own_tokens() -> None:
    assert probe_request((4, 7))["sampling_params"] == {"max_tokens": 1, "prompt_logprobs": 0}
    rows = [None, {"7": {"logprob": -1.5}}, {"4": {"logprob": -0.25}}]
    np.testing.assert_array_equal(read_probe({"prompt_logprobs": rows}, (4, 7, 4)), np.float32([-1.5, -0.25]))
    for bad in ({"prompt_logprobs": rows[:2]}, {"prompt_logprobs": None}, {}, None):
        with pytest.raises(ServerFault, match="probe"):
            read_probe(bad, (4, 7, 4))


def test_releases_that_were_never_tried_are_refused_with_those_that_were() -> None:
    check_release("http://a:1", "0.32.0")
    check_release("http://a:1", "0.32.1+cpu")
    for release in ("0.31.9", "0.320.0", "1.0"):
        with pytest.raises(InputError, match=r"known to work: 0\.32\.x"):
            check_release("http://a:1", release)


GOOD = {
    "architecture": {"hidden_size": 8, "tie_word_embeddings": True},
    "tokenizer": "t",
    "dtype": "float32",
    "logprobs_mode": "processed_logprobs",
    "max_model_len": 96,
    "weights_dir": "/w",
    "weights_url": "http://learner:9000/weights/",
}
WANTED = {"architecture": GOOD["architecture"], "tokenizer": "t", "dtype": "float32", "max_length": 96}
WANTED |= {"pull_from": "http://learner:9000/weights/"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architecture": {"hidden_size": 16, "tie_word_embeddings": True}}, r"hidden_size=16 \(learner: 8\)"),
        ({"tokenizer": "u"}, "tokenizer is not the learner's"),
        ({"dtype": "bfloat16"}, "config.engine.dtype='float32'"),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"max_model_len": 95}, "--max-model-len 96"),
        ({"weights_dir": ""}, "--weights-dir"),
        ({"weights_url": ""}, "pulls weights from nowhere, the learner offers http://learner:9000/weights/"),
        (
            {"weights_url": "http://learner:9001/weights/"},
            "from http://learner:9001/weights/, the learner .*weights_port",
        ),
    ],
)
def test_a_server_of_something_else_is_refused_with_the_fix(change: dict, says: str) -> None:
    check_description("http://a:1", GOOD, **WANTED)
    check_description("http://a:1", GOOD | {"weights_url": ""}, **(WANTED | {"pull_from": ""}))
    with pytest.raises(InputError, match=says):
        check_description("http://a:1", GOOD | change, **WANTED)
