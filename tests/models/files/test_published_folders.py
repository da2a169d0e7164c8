"""Folders that say two things: two heads, two sets of weights, too few positions."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.text_model import TextModel
from gigpo_jax.models import decoder
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.rope_scaling import LinearScaling, Scaling, YarnScaling
from gigpo_jax.policy import check_shape
from tests.models.shapes import SMALL
from tests.models.text.folders import write_model

WEIGHTS = "model.safetensors"


def add_tensor(folder: Path, name: str, change: float) -> None:
    tensors = safetensors.numpy.load_file(folder / WEIGHTS)
    tensors[name] = tensors["model.embed_tokens.weight"] + np.float32(change)
    safetensors.numpy.save_file(tensors, folder / WEIGHTS)


def test_a_head_beside_a_tied_embedding_must_be_equal(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    add_tensor(tmp_path / "model", "lm_head.weight", 0.0)
    config, params = load_hf(tmp_path / "model")
    assert config.tie_word_embeddings
    assert "head" not in params
    add_tensor(tmp_path / "model", "lm_head.weight", 0.5)
    with pytest.raises(InputError) as caught:
        load_hf(tmp_path / "model")
    assert "lm_head.weight is not the embedding" in str(caught.value)
    for way_out in ("set tie_word_embeddings to false", "remove lm_head.weight"):
        assert way_out in str(caught.value)


def test_only_frequencies_of_the_rotary_embedding_are_left_out(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    add_tensor(tmp_path / "model", "model.layers.0.self_attn.rotary_emb.inv_freq", 0.0)
    load_hf(tmp_path / "model")
    add_tensor(tmp_path / "model", "model.rotary_emb.weight", 0.0)
    with pytest.raises(InputError, match="do not belong to config"):
        load_hf(tmp_path / "model")


@pytest.mark.parametrize("seed", [0, 1])
def test_an_index_beside_a_single_file_holds_the_same_weights(seed: int, tmp_path: Path) -> None:
    config = write_model(tmp_path / "model")
    params = decoder.init_params(config, jax.random.key(seed))
    save_hf(tmp_path / "shards", config, params, max_shard_bytes=20_000)
    for file in (tmp_path / "shards").glob("*.safetensors*"):
        shutil.copy(file, tmp_path / "model")
    if seed:
        with pytest.raises(InputError, match="hold different weights; remove the one"):
            load_hf(tmp_path / "model")
    else:
        _, loaded = load_hf(tmp_path / "model")
        np.testing.assert_array_equal(loaded["embed"], params["embed"])


def test_texts_longer_than_the_positions_are_refused(tmp_path: Path) -> None:
    shape = write_model(tmp_path / "model", shape={"max_position_embeddings": 64})
    assert json.loads((tmp_path / "model/config.json").read_text())["max_position_embeddings"] == 64
    with pytest.raises(InputError, match="max_length=65: the model has 64 positions"):
        TextModel(str(tmp_path / "model"), dtype="float32", max_length=65)
    config = default_config()
    config.sampling.update(max_prompt_tokens=56, max_response_tokens=8)
    check_shape(config, shape)
    config.sampling.max_prompt_tokens = 57
    with pytest.raises(InputError) as caught:
        check_shape(config, shape)
    assert "up to 65 tokens, the model has 64 positions" in str(caught.value)


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [(YarnScaling(4.0, 64), 256), (YarnScaling(4.0, 16), 64), (LinearScaling(2.0), 128)],
)
def test_an_extended_context_takes_longer_texts(scaling: Scaling, longest: int) -> None:
    shape = dataclasses.replace(SMALL["gemma3"], max_position_embeddings=64, rope_scaling=scaling)
    config = default_config()
    config.sampling.update(max_prompt_tokens=longest - 8, max_response_tokens=8)
    check_shape(config, shape)
    config.sampling.max_response_tokens = 9
    with pytest.raises(InputError, match=f"the model has {longest} positions"):
        check_shape(config, shape)


def test_trees_of_texts_longer_than_a_window_are_refused() -> None:
    shape = SMALL["gemma3"]
    config = default_config()
    config.sampling.update(max_prompt_tokens=12, max_response_tokens=8)
    check_shape(config, shape)
    config.batch.share_prefixes = True
    with pytest.raises(InputError, match="the model has sliding windows of 6 tokens"):
        check_shape(config, shape)
    check_shape(config, dataclasses.replace(shape, sliding_window=config.batch.row_length))
