"""Every family: transformers, reading what `save_hf` wrote, gives the same logits and
gradients.
"""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models import decoder, next_tokens
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.value_head import predict_values
from tests.models.shapes import SMALL, check_gradient, random_params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


# One shape a family; the others differ in numbers of heads and in tied embeddings.
FAMILIES = ("gqa2_untied", "qwen3_tied", "llama3", "moe", "smollm3", "gemma3", "qwen3_5")
# Factors of the weights where weights of full size multiply rounding too much. Gradients of
# transformers then differ from gradients in float64 by 7e-5 (qwen3_5) and 1.8e-5, ours by 1.6e-5 and
# 9.5e-6; with these factors by 3.6e-6 and 1e-6, ours by 3e-6 and 8e-7.
FACTORS = {"qwen3_5": 0.3, "gqa7_untied": 0.5}
SHAPES = [pytest.param(name, marks=() if name in FAMILIES else pytest.mark.slow) for name in SMALL]


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_gradients_equal_those_of_transformers(
    name: str, tmp_path: pathlib.Path
) -> None:
    config = SMALL[name]
    params = jax.tree.map(lambda leaf: FACTORS.get(name, 1) * leaf, random_params(config))
    save_hf(tmp_path / "model", config, params)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert theirs.config.architectures == [type(theirs).__name__]
    assert theirs.config.model_type == config.model_type
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.dtype == torch.float32
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 33))

    expected = theirs(torch.tensor(tokens)).logits
    result = jax.jit(lambda params: next_tokens.logits(config, params, tokens))(params)
    largest = np.abs(expected.detach().numpy()).max()
    assert largest > 1
    np.testing.assert_allclose(result, expected.detach().numpy(), atol=1e-5 * largest, rtol=0)

    def loss(params: decoder.Params) -> jax.Array:
        logp = jax.nn.log_softmax(next_tokens.logits(config, params, tokens)[:, :-1])
        return -jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1).mean()

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    flat = expected[:, :-1].reshape(-1, config.vocab_size)
    their_loss = torch.nn.functional.cross_entropy(flat, torch.tensor(tokens[:, 1:]).reshape(-1))
    their_loss.backward()
    assert float(value) == pytest.approx(their_loss.item(), rel=1e-5)
    assert check_gradient(gradient, theirs, tmp_path / "gradient", limit=1e-5) == config


# The layers are the layers of the logits above.
@pytest.mark.parametrize(
    "name",
    [
        "gqa2_untied",
        pytest.param("qwen3_tied", marks=pytest.mark.slow),
        pytest.param("llama3", marks=pytest.mark.slow),
    ],
)
def test_values_equal_those_of_transformers(name: str, tmp_path: pathlib.Path) -> None:
    """A critic is stored as a token classifier with one label."""
    config = dataclasses.replace(SMALL[name], value_head=True)
    params = random_params(config)
    save_hf(tmp_path / "critic", config, params)
    classifier = transformers.AutoModelForTokenClassification
    theirs, report = classifier.from_pretrained(tmp_path / "critic", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 33))
    expected = theirs(torch.tensor(tokens)).logits[..., 0].detach().numpy()
    assert np.abs(expected).max() > 1
    result = predict_values(params, decoder.hidden_states(config, params, tokens))
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_padding_and_positions_equal_those_of_transformers(tmp_path: pathlib.Path) -> None:
    config = SMALL["gqa2_untied"]
    params = random_params(SMALL["gqa2_untied"])
    save_hf(tmp_path / "model", config, params)
    theirs = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path / "model")
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (2, 12))
    mask = np.array([[1] * 12, [0] * 5 + [1] * 7])  # left padding, as `generate` uses it
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    expected = theirs(
        torch.tensor(tokens),
        attention_mask=torch.tensor(mask),
        position_ids=torch.tensor(positions),
    ).logits.detach()
    result = next_tokens.logits(config, params, tokens, positions, mask)
    np.testing.assert_allclose(result[0], expected[0], atol=1e-4)
    np.testing.assert_allclose(result[1, 5:], expected[1, 5:], atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("moe", marks=pytest.mark.slow),
        pytest.param("llama3", marks=pytest.mark.slow),
        pytest.param("mistral_yarn", marks=pytest.mark.slow),
        "moe_mixed",
        "smollm3",
        "gemma3",
        "qwen3_5",
    ],
)
def test_packed_texts_equal_those_of_transformers_alone(name: str, tmp_path: pathlib.Path) -> None:
    config = SMALL[name]
    params = random_params(config)
    save_hf(tmp_path / "model", config, params)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    lengths = (11, 4, 7)
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, config.vocab_size, length) for length in lengths]
    tokens, positions, segments = (np.zeros((1, 25), np.int32) for _ in range(3))
    tokens[0, :22] = np.concatenate(texts)
    positions[0, :22] = np.concatenate([np.arange(length) for length in lengths])
    segments[0, :22] = np.repeat([1, 2, 3], lengths)
    result = next_tokens.logits(config, params, tokens, positions, segments)[0, :22]
    expected = [theirs(torch.tensor(text[None])).logits[0].detach().numpy() for text in texts]
    np.testing.assert_allclose(result, np.concatenate(expected), atol=1e-4)


def test_bfloat16_compute_is_close_to_that_of_transformers(tmp_path: pathlib.Path) -> None:
    config = SMALL["gqa4_tied"]
    params = random_params(SMALL["gqa4_tied"])
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), params)
    save_hf(tmp_path / "model", config, params, dtype=jnp.bfloat16)
    theirs = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert theirs.dtype == torch.bfloat16
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 33))
    exact = next_tokens.logits(config, params, tokens)
    result = next_tokens.logits(config, params, tokens, dtype=jnp.bfloat16)
    assert result.dtype == jnp.float32
    their_error = np.abs(
        theirs(torch.tensor(tokens)).logits.detach().float().numpy() - exact
    ).mean()
    assert 0 < np.abs(result - exact).mean() < 1.5 * their_error
