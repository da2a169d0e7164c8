"""Sessions of a policy that a real vLLM server samples from."""

import contextlib
import pathlib

import numpy as np
import pytest

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.endpoint.server import Endpoint
from gigpo_jax.engines.endpoint.settings import EndpointSettings
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.endpoint.serving import KEY, client
from tests.engines.vllm import serving
from tests.engines.vllm.serving import MAX_LENGTH, TINY, learner_logprobs

pytestmark = pytest.mark.vllm


def test_sessions_record_what_vllm_sampled(tmp_path: pathlib.Path) -> None:
    config, params = load_hf(TINY)
    words = load_tokenizer(TINY)
    sampling = SamplingParams(temperature=1.3, max_tokens=12, stop_token_ids=words.stop_token_ids)
    (tmp_path / "weights").mkdir()
    process = serving.start(TINY, tmp_path, tmp_path / "weights")
    with contextlib.ExitStack() as opened:
        opened.callback(process.stop)
        serving.wait_up(process)
        urls = (process.url,)
        folder = tmp_path / "weights"
        engine = opened.enter_context(
            serving.engine(config, params, words, urls=urls, weights_dir=folder)
        )
        settings = EndpointSettings("127.0.0.1", 0, KEY, "policy", sampling, MAX_LENGTH - 12, 2, 1)
        endpoint = opened.enter_context(contextlib.closing(Endpoint(engine, words, settings)))
        policy = opened.enter_context(client(endpoint.url + "/v1"))
        base = policy.post("/sessions", body={"task": "a task"}, cast_to=object)["base_url"]
        session = opened.enter_context(client(base))
        messages = [{"role": "user", "content": "you see a desk 1."}]
        told = (
            session.chat.completions.create(model="policy", messages=messages)
            .choices[0]
            .message.content
        )
        messages += [
            {"role": "assistant", "content": told},
            {"role": "user", "content": "you see a mug 1."},
        ]
        session.chat.completions.create(model="policy", messages=messages)
        first, second = session.post("/reward", body={"reward": 1}, cast_to=object)["steps"]
    for step in (first, second):
        expected = learner_logprobs(
            config, params, step["prompt_tokens"], np.array(step["tokens"]), 1.3
        )
        assert step["logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)
        assert step["version"] == 0
    read = [*first["prompt_tokens"], *first["tokens"]]
    assert second["prompt_tokens"][: len(read)] == read
