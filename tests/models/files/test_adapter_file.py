"""Adapters in PEFT's layout: names, shapes, what comes back, what is refused."""

import json
import pathlib
import re

import jax
import numpy as np
import pytest
import safetensors.numpy

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.files.adapter_file import load_adapter, save_adapter
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.lora import LoraConfig, layer_numbers
from tests.models.shapes import VL, VL3, random_params
from tests.models.test_lora import ALL, BOTH, SHAPE, SOME, random_adapter

NUMBERS = layer_numbers(SHAPE)


def test_an_adapter_comes_back_as_it_was(tmp_path: pathlib.Path) -> None:
    adapter = random_adapter(SHAPE, ALL)
    save_adapter(tmp_path / "a", ALL, adapter, base="a/model", numbers=NUMBERS)
    again = load_adapter(tmp_path / "a", SHAPE, ALL)
    assert again.keys() == adapter.keys()
    for name, pair in adapter["layers"].items():
        for factor, leaf in pair.items():
            np.testing.assert_array_equal(again["layers"][name][factor], leaf)


def test_names_and_shapes_are_those_of_peft(tmp_path: pathlib.Path) -> None:
    adapter = random_adapter(SHAPE, SOME)
    save_adapter(tmp_path, SOME, adapter, base="a/model", numbers=NUMBERS)
    tensors = safetensors.numpy.load_file(tmp_path / "adapter_model.safetensors")
    prefix = "base_model.model.model.layers.2"
    down = tensors[f"{prefix}.mlp.down_proj.lora_A.weight"]
    np.testing.assert_array_equal(down, np.asarray(adapter["layers"]["down"]["lora_a"][2]).T)
    assert tensors[f"{prefix}.self_attn.q_proj.lora_B.weight"].shape == (32, 2)
    assert len(tensors) == 3 * 2 * 2
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 8)
    assert config["target_modules"] == ["q_proj", "down_proj"]
    assert config["base_model_name_or_path"] == "a/model"


@pytest.mark.parametrize(
    ("shape", "tower", "pairs"),
    [(VL, "qwen2_5_vl", 2 * 2 + 2 * 5), (VL3, "qwen3_vl", 3 * 2 + 4 * 4)],
)
def test_an_adapter_of_decoder_and_tower_comes_back_under_the_names_of_transformers(
    shape: DecoderConfig, tower: str, pairs: int, tmp_path: pathlib.Path
) -> None:
    transformers = pytest.importorskip("transformers")
    adapter = random_adapter(shape, BOTH)
    numbers = layer_numbers(shape)
    save_adapter(tmp_path / "both", BOTH, adapter, base="", numbers=numbers, tower=tower)
    again = load_adapter(tmp_path / "both", shape, BOTH)
    jax.tree.map(np.testing.assert_array_equal, again, adapter)
    save_hf(tmp_path / "model", shape, random_params(shape))
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    linears = {
        name: module.weight.shape
        for name, module in theirs.named_modules()
        if hasattr(module, "in_features")
    }
    pattern = json.loads((tmp_path / "both/adapter_config.json").read_text())["target_modules"]
    chosen = {name for name in linears if re.fullmatch(pattern, name)}
    tensors = safetensors.numpy.load_file(tmp_path / "both/adapter_model.safetensors")
    modules = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in tensors}
    assert modules == chosen
    assert len(modules) == pairs  # layers x linears of the decoder, and of the tower
    for name in modules:
        a, b = (tensors[f"base_model.model.{name}.lora_{factor}.weight"] for factor in "AB")
        assert (b @ a).shape == linears[name]
    text = LoraConfig(2, 8.0, BOTH.targets)
    adapter = {"layers": adapter["layers"]}
    save_adapter(tmp_path / "text", text, adapter, base="", numbers=numbers, tower=tower)
    pattern = json.loads((tmp_path / "text/adapter_config.json").read_text())["target_modules"]
    assert {name for name in linears if re.fullmatch(pattern, name)} == {
        name for name in modules if "visual" not in name
    }


def test_another_or_a_broken_adapter_is_refused(tmp_path: pathlib.Path) -> None:
    save_adapter(tmp_path, SOME, random_adapter(SHAPE, SOME), base="", numbers=NUMBERS)
    for shape_or_config in (
        LoraConfig(4, 8.0, SOME.targets),
        LoraConfig(2, 7.0, SOME.targets),
        LoraConfig(2, 8.0),
    ):
        with pytest.raises(InputError, match=r"config\.model\.lora has"):
            load_adapter(tmp_path, SHAPE, shape_or_config)
    file = tmp_path / "adapter_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    with pytest.raises(InputError, match="broken or cut short"):
        load_adapter(tmp_path, SHAPE, SOME)
    tensors = safetensors.numpy.load(whole)
    tensors.pop("base_model.model.model.layers.0.mlp.down_proj.lora_A.weight")
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(
        InputError, match=r"1 tensors are not those.*layers\.0\.mlp\.down_proj\.lora_A"
    ):
        load_adapter(tmp_path, SHAPE, SOME)
    file.write_bytes(whole)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    # The last ones belong to a changed base, or are of other kinds.
    refused = {"use_dora": True, "lora_bias": True, "layers_to_transform": [0]}
    refused |= {"trainable_token_indices": [3], "alora_invocation_tokens": [1], "use_qalora": True}
    settings = [{key: value} for key, value in refused.items()]
    for start in ("pissa", "pissa_niter_16", "olora", "loftq", "corda"):
        settings.append({"init_lora_weights": start})
    settings += [{"peft_type": "ADALORA"}, {"peft_type": "LOHA"}, {"of_a_later_release": True}]
    for changes in settings:
        ((key, value),) = changes.items()
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | changes))
        with pytest.raises(
            InputError, match=f"{key}={value!r} is not supported".replace("[", r"\[")
        ):
            load_adapter(tmp_path, SHAPE, SOME)
    allowed = {"init_lora_weights": "gaussian", "rank_pattern": {}, "lora_bias": False}
    allowed |= {"peft_version": "0.18.0", "lora_dropout": 0.1, "layers_to_transform": None}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | allowed))
    load_adapter(tmp_path, SHAPE, SOME)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(InputError, match="missing or broken"):
        load_adapter(tmp_path, SHAPE, SOME)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.float32(np.nan), "NaN or infinite"),
        (np.float64(1e300), "NaN or infinite"),
        (np.int32(1), "dtype I32"),
    ],
)
def test_numbers_that_are_not_finite_or_not_floating_point_are_refused(
    tmp_path: pathlib.Path, value: np.generic, message: str
) -> None:
    save_adapter(tmp_path, SOME, random_adapter(SHAPE, SOME), base="", numbers=NUMBERS)
    file = tmp_path / "adapter_model.safetensors"
    name = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"
    tensors = safetensors.numpy.load_file(file)
    tensors[name] = tensors[name].astype(value.dtype)
    tensors[name][0, 0] = value
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(InputError, match=rf"{name}.*{message}"):
        load_adapter(tmp_path, SHAPE, SOME)
