"""A real server of a Qwen3 model gives the learner's log-probabilities, before and after a push."""

import pathlib

import numpy as np
import pytest

from gigpo_jax.models.qwen2_config import Qwen2Config
from gigpo_jax.models.tokenizer import load_tokenizer
from gigpo_jax.models.weights import save_hf
from tests.models.shapes import random_params
from tests.sampling.vllm import serving

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("compiled_once")]


def test_log_probabilities_of_qwen3_are_the_learners_before_and_after_a_push(tmp_path: pathlib.Path) -> None:
    words = load_tokenizer(serving.TINY)
    shape = Qwen2Config(words.vocab_size, 64, 96, 2, 4, 2, 32, model_type="qwen3")
    started, pushed = random_params(shape, 0), random_params(shape, 1)
    save_hf(tmp_path / "model", shape, started, tokenizer=words)
    prompts = [words.encode_chat(f"you see a {place} 1.") for place in ("desk", "drawer", "shelf")]
    server = serving.start(tmp_path / "model", tmp_path / "logs", tmp_path / "weights")
    try:
        serving.wait_up(server)
        settings = {"urls": (server.url,), "weights_dir": tmp_path / "weights"}
        with serving.engine(shape, started, words, **settings) as engine:
            for version, params in enumerate((started, pushed)):
                if version:
                    engine.update_weights(params, version)
                for prompt, response in zip(prompts, serving.ask(engine, prompts), strict=True):
                    assert response.version == version
                    ours = serving.learner_logprobs(shape, params, prompt, response.tokens, 1.0)
                    np.testing.assert_allclose(response.logprobs, ours, atol=1e-4)
    finally:
        server.stop()
