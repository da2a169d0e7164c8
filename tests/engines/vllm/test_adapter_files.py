"""Adapters as a push hands them over: in PEFT's layout, checked against checksum and base model; no
vLLM needed.
"""

import pathlib
from types import SimpleNamespace

import numpy as np
import pytest

from gigpo_jax.engines.remote.weight_store import WeightStore
from gigpo_jax.engines.vllm.worker.extension import WeightLoader
from gigpo_jax.models import lora
from gigpo_jax.models.files.adapter_file import load_adapter
from gigpo_jax.models.files.checksum import folder_checksum
from gigpo_jax.models.files.safetensors_file import read_header
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.lora import LoraConfig
from tests.models.shapes import VL, VL3
from tests.models.test_lora import SHAPE, random_adapter, random_params

CONFIG = LoraConfig(4, 4.0, ("q_proj", "down_proj"))
FLOAT32 = np.dtype("float32")


class Worker(WeightLoader):
    """The extension in a server that was started for adapters, without vLLM."""

    def __init__(self, model: pathlib.Path) -> None:
        self.model_config = type("Config", (), {"model": str(model), "tokenizer": str(model)})
        self.vllm_config = type("Config", (), {"lora_config": object()})
        # Only requests of an adapter use the manager.
        manager = SimpleNamespace(_load_adapter=None)
        self.model_runner = SimpleNamespace(lora_manager=manager)


@pytest.fixture
def served(tmp_path: pathlib.Path) -> pathlib.Path:
    save_hf(tmp_path / "served", SHAPE, random_params(SHAPE))
    return tmp_path / "served"


def test_a_pushed_adapter_is_accepted_and_the_last_two_stay(
    allowed: pathlib.Path, served: pathlib.Path
) -> None:
    worker = Worker(served)
    store = WeightStore(allowed)
    base = folder_checksum(served)
    for number in range(3):
        adapter = random_adapter(SHAPE, CONFIG, number)
        checksum = store.write_adapter(SHAPE, adapter, dtype=FLOAT32, name=f"run.{number}")
        report = worker.gigpo_check_adapter(f"run.{number}", checksum, base)
        assert report["checksum"] == checksum
        assert report["bytes"] == 4 * lora.adapter_param_count(SHAPE, CONFIG)
        again = load_adapter(
            report["folder"], SHAPE, CONFIG
        )  # alpha is the rank: the scale is in B already
        np.testing.assert_array_equal(
            again["layers"]["down"]["lora_a"], adapter["layers"]["down"]["lora_a"]
        )
    assert sorted(path.name for path in allowed.iterdir()) == ["run.1", "run.2"]
    store.close()
    assert list(allowed.iterdir()) == []


def test_a_pushed_adapter_of_qwen3_vl_has_the_names_that_vllm_reads(
    allowed: pathlib.Path,
) -> None:
    store = WeightStore(allowed)
    for shape, prefix in (VL, "layers"), (VL3, "language_model.layers"):
        name = shape.model_type
        store.write_adapter(shape, random_adapter(shape, CONFIG), dtype=FLOAT32, name=name)
        names = read_header(allowed / name / "adapter_model.safetensors")
        assert f"base_model.model.model.{prefix}.1.self_attn.q_proj.lora_A.weight" in names


def test_a_damaged_foreign_or_misplaced_adapter_is_refused(
    allowed: pathlib.Path, served: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    store = WeightStore(allowed)
    base = folder_checksum(served)
    checksum = store.write_adapter(SHAPE, random_adapter(SHAPE, CONFIG), dtype=FLOAT32, name="a")
    file = allowed / "a/adapter_model.safetensors"
    good = file.read_bytes()

    def says(name: str = "a", checksum: str = checksum, base: str = base) -> str:
        return Worker(served).gigpo_check_adapter(name, checksum, base)["error"]

    assert "not the weights of the learner's model.path" in says(base="0" * 32)
    assert "the learner wrote 0000" in says(checksum="0" * 32)
    (allowed / "a").rename(tmp_path / "b")
    assert "share the folder with the learner" in says()
    assert "not in" in says(name="../b")
    (tmp_path / "b").rename(allowed / "a")
    file.write_bytes(good[:-4])
    assert "broken or cut short" in says()
    file.write_bytes(good[:-4] + b"\0\0\0\1")
    assert f"the learner wrote {checksum}" in says()
    file.unlink()
    assert "No such file" in says()


def test_a_server_with_adapters_keeps_its_model(
    allowed: pathlib.Path, served: pathlib.Path
) -> None:
    checksum = WeightStore(allowed).write_weights(
        SHAPE, random_params(SHAPE), dtype=FLOAT32, name="a.safetensors"
    )
    assert "--enable-lora" in Worker(served).gigpo_load("a.safetensors", checksum)["error"]
