"""An embedding with more rows than the tokenizer has ids: the same numbers everywhere."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.engines.base import Completion, SamplingParams, request_key
from gigpo_jax.engines.remote.probe import make_probe_scorer
from gigpo_jax.engines.text_model import TextModel
from gigpo_jax.engines.vllm.worker.vocabulary import mask_padding
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.next_tokens import logits
from gigpo_jax.policy import load_policy
from tests.models.text.folders import write_model

IDS = 263
RESPONSES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("padded") / "model"
    write_model(path, more_rows=40, shape={"tie_word_embeddings": False})
    return path


def sample_responses(folder: Path) -> tuple[np.ndarray, list[Completion]]:
    with TextModel(str(folder), dtype="float32", max_length=128) as model:
        prompt = np.asarray(model.tokenizer.encode_chat("hi"), np.int32)

        async def generate() -> list[Completion]:
            settings = [
                SamplingParams(temperature=0.7, max_tokens=64, key=request_key(1, 0, i, 0, 0))
                for i in range(RESPONSES)
            ]
            return await asyncio.gather(*(model._engine.generate(prompt, s) for s in settings))

        return prompt, asyncio.run(generate())


def test_engine_learner_and_probe_leave_out_ids_without_a_token(folder: Path) -> None:
    prompt, responses = sample_responses(folder)
    tokens = np.concatenate([response.tokens for response in responses])
    assert len(tokens) == 64 * RESPONSES
    assert tokens.max() < IDS

    # By hand: all scores of the folder, without scores of the padding.
    shape, params = load_hf(folder)
    assert (shape.vocab_size, shape.num_tokens) == (IDS + 40, 0)
    text = np.concatenate([prompt, responses[0].tokens])
    scores = logits(shape, params, text[None])[0, :, :IDS]
    tempered = jax.nn.log_softmax(scores[len(prompt) - 1 : -1] / 0.7)
    expected = np.take_along_axis(np.asarray(tempered), responses[0].tokens[:, None], 1)[:, 0]
    np.testing.assert_allclose(responses[0].logprobs, expected, atol=1e-4)

    config = resolve(default_config()).unlock()
    config.model.update(path=str(folder), compute_dtype="float32")
    config.sampling.update(max_prompt_tokens=64, max_response_tokens=64, temperature=0.7)
    config.batch.update(row_length=128, rows=8)
    mesh = make_mesh()
    policy = load_policy(config, mesh)
    assert policy.config.num_tokens == IDS
    samples = [Sample(prompt, r.tokens, r.logprobs, images=None) for r in responses]
    scored = make_token_logprobs(config, policy, mesh, 0.7)(policy.trained, policy.frozen, samples)
    for row, response in zip(scored.logprob, responses, strict=True):
        np.testing.assert_allclose(row, response.logprobs, atol=1e-4)
    entropy = -np.sum(np.exp(tempered) * tempered, axis=1)
    np.testing.assert_allclose(scored.entropy[0], entropy, atol=1e-4)

    probe = make_probe_scorer(policy.config, policy.params, "float32")(policy.params, text)
    plain = np.take_along_axis(np.asarray(jax.nn.log_softmax(scores[:-1])), text[1:, None], 1)
    np.testing.assert_allclose(probe, plain[:, 0], atol=1e-4)


def test_a_model_of_vllm_never_scores_ids_without_a_token() -> None:
    torch = pytest.importorskip("torch")
    model: Any = SimpleNamespace(compute_logits=lambda hidden: hidden.clone())
    hidden = torch.arange(8.0).reshape(2, 4)
    for count in (2, 3):  # every push asks for it
        mask_padding(model, count)
    masked = model.compute_logits(hidden)
    assert torch.equal(masked[:, :3], hidden[:, :3])
    assert masked[:, 3].tolist() == [float("-inf")] * 2
    empty: Any = SimpleNamespace(compute_logits=lambda hidden: None)
    mask_padding(empty, 2)
    assert empty.compute_logits(hidden) is None
