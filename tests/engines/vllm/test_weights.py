"""Weight files: written by the learner, read and refused as the server's worker does (which needs
no jax).
"""

import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.remote import weight_store
from gigpo_jax.engines.vllm.worker import extension
from gigpo_jax.models import decoder
from gigpo_jax.models.files.checksum import folder_checksum
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.vision.vision_config import preprocessor_json
from tests.models.shapes import SMALL, VISION, VISION3, VL, VL3, random_params

ROOT = pathlib.Path(__file__).parents[3]
SHAPE = decoder.DecoderConfig(40, 16, 32, 2, 4, 2, 4, tie_word_embeddings=False)


@pytest.fixture
def params() -> decoder.Params:
    return decoder.init_params(SHAPE, jax.random.key(0))


@pytest.mark.parametrize("shape", [SHAPE, SMALL["moe_mixed"]], ids=["dense", "experts"])
def test_a_pushed_file_has_the_tensors_that_a_saved_folder_has(
    tmp_path: pathlib.Path, shape: decoder.DecoderConfig
) -> None:
    params = random_params(shape)
    store = weight_store.WeightStore(tmp_path / "w")
    checksum = store.write_weights(shape, params, dtype=jnp.dtype("bfloat16"), name="one")
    file = tmp_path / "w/one"
    save_hf(tmp_path / "hf", shape, params, dtype="bfloat16")
    assert folder_checksum(tmp_path / "hf") == checksum
    with (
        safetensors.safe_open(file, "np") as ours,
        safetensors.safe_open(tmp_path / "hf/model.safetensors", "np") as hf,
    ):
        assert set(ours.keys()) == set(hf.keys())
        for name in hf.keys():  # noqa: SIM118  (not a dict)
            np.testing.assert_array_equal(ours.get_tensor(name), hf.get_tensor(name))
    with extension.open_verified(file, checksum) as (entries, _):
        assert list(entries) == list(safetensors.numpy.load_file(file))


def test_experts_are_pushed_under_the_names_of_published_models(tmp_path: pathlib.Path) -> None:
    """vLLM finds the number and the matrix of an expert in the name of its tensor."""
    shape = SMALL["moe_mixed"]
    params = random_params(shape)
    store = weight_store.WeightStore(tmp_path)
    store.write_weights(shape, params, dtype=np.dtype("float32"), name="one")
    tensors = safetensors.numpy.load_file(tmp_path / "one")
    names = {"gate_proj": "expert_gate", "up_proj": "expert_up", "down_proj": "expert_down"}
    found = {name for name in tensors if ".mlp.experts." in name}
    assert found == {
        f"model.layers.3.mlp.experts.{expert}.{module}.weight"
        for expert in range(5)
        for module in names
    }
    for name in found:
        expert, module = name.split(".")[5:7]
        kernel = params["layers"][names[module]]["kernel"][0, int(expert)]
        np.testing.assert_array_equal(tensors[name], kernel.T)
    router = params["layers"]["router"]["kernel"][0]
    np.testing.assert_array_equal(tensors["model.layers.3.mlp.gate.weight"], router.T)


def test_only_the_newest_file_is_kept_and_none_after_the_end(
    params: decoder.Params, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(weight_store, "TMPFS", tmp_path)
    store = weight_store.WeightStore()
    assert store.folder == weight_store.local_folder()
    assert store.folder.stat().st_mode & 0o077 == 0
    for name in ("a", "b"):
        store.write_weights(SHAPE, params, dtype=np.dtype("float32"), name=name)
        names = [path.name for path in store.folder.iterdir()]
        assert [kept for kept in names if not kept.endswith(weight_store.LOCK)] == [name]
    store.close()
    assert not any(store.folder.iterdir())


def test_a_folder_of_another_user_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(weight_store, "TMPFS", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    weight_store.local_folder().symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"weights_dir='': .*another user or is a link"):
        weight_store.WeightStore()


def test_a_push_holds_one_array_at_a_time_in_host_memory(tmp_path: pathlib.Path) -> None:
    shape = decoder.DecoderConfig(512, 128, 352, 8, 4, 2, 32, tie_word_embeddings=False)
    params = decoder.init_params(shape, jax.random.key(0))
    largest = max(leaf.size for leaf in jax.tree.leaves(params)) * 4
    store = weight_store.WeightStore(tmp_path)
    for dtype in ("float32", "bfloat16"):
        tracemalloc.start()
        store.write_weights(shape, params, dtype=jnp.dtype(dtype), name=dtype)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.2 * largest < 0.6 * 4 * decoder.param_count(shape), (peak, largest)


def test_what_a_killed_run_left_in_memory_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(weight_store, "TMPFS", tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = weight_store.local_folder()
    (folder / f"{ended.pid}.adapter").mkdir(parents=True)
    (folder / f"{ended.pid}.file").touch()
    own = weight_store.push_name("w")
    (folder / own).touch()
    weight_store.WeightStore().close()
    assert [path.name for path in folder.iterdir()] == [own]
    # A process of another container, which /proc does not list.
    foreign = folder / f"{ended.pid}.file"
    foreign.touch()
    with (folder / f"{ended.pid}.store.0{weight_store.LOCK}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        weight_store.WeightStore().close()
        assert foreign.exists()
    weight_store.WeightStore().close()
    assert [path.name for path in folder.iterdir()] == [own]


def test_a_server_takes_files_from_its_folder_only(
    allowed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (allowed / "w").touch()
    assert extension.allowed_path("w") == allowed / "w"
    (tmp_path / "w").touch()
    (allowed / "link").symlink_to(tmp_path / "w")
    (allowed / "deep").mkdir()
    (allowed / "deep/w").touch()
    for name in (str(tmp_path / "w"), "../w", "link", "/etc/passwd", "deep/w", "", "."):
        with pytest.raises(InputError, match="not in"):
            extension.allowed_path(name)
    with pytest.raises(InputError, match="share the folder with the learner"):
        extension.allowed_path("absent")


def test_without_a_folder_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(extension.WEIGHTS_DIR, raising=False)
    with pytest.raises(InputError, match="GIGPO_WEIGHTS_DIR"):
        extension.allowed_path("w")


class Worker(extension.WeightLoader):
    """The extension without vLLM: `_reload_model` records what the model would have been given."""

    def __init__(self, model: pathlib.Path) -> None:
        self.model_config = type("Config", (), {"model": str(model), "tokenizer": str(model)})
        self.vllm_config = type("Config", (), {"lora_config": None})
        self.loaded: list[str] = []

    def _reload_model(self, entries: dict, data: object) -> None:
        self.loaded = list(entries)


def test_the_model_is_touched_only_by_the_bytes_that_the_learner_wrote(
    allowed: pathlib.Path, tmp_path: pathlib.Path, params: decoder.Params
) -> None:
    worker = Worker(tmp_path)
    store = weight_store.WeightStore(allowed)
    checksum = store.write_weights(SHAPE, params, dtype=np.dtype("float32"), name="a")
    file = allowed / "a"
    whole = file.read_bytes()
    for damaged in (whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:], whole[:-1]):
        file.write_bytes(damaged)
        assert "/a: " in worker.gigpo_load("a", checksum)["error"]
    assert "not in" in worker.gigpo_load("../a", checksum)["error"]
    assert worker.loaded == []
    file.write_bytes(whole)
    assert "the learner wrote 0000" in worker.gigpo_load("a", "0" * 32)["error"]
    assert worker.loaded == []
    good = worker.gigpo_load("a", checksum)
    assert good["checksum"] == checksum
    assert good["bytes"] == 4 * decoder.param_count(SHAPE)
    assert len(worker.loaded) == 3 + 2 * 12


def test_a_write_that_fails_leaves_nothing_after_the_end(
    tmp_path: pathlib.Path, params: decoder.Params
) -> None:
    store = weight_store.WeightStore(tmp_path)
    store.write_weights(SHAPE, params, dtype=np.dtype("float32"), name="a")
    broken = params | {"head": np.array(["not", "numbers"])}
    with pytest.raises((TypeError, ValueError)):
        store.write_weights(SHAPE, broken, dtype=np.dtype("float32"), name="b")
    store.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small folder in memory")
def test_memory_without_room_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, params: decoder.Params
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount")
    try:
        monkeypatch.setattr(weight_store, "TMPFS", tmp_path)
        store = weight_store.WeightStore()
        with pytest.raises(OSError, match="No space left"):
            store.write_weights(SHAPE, params, dtype=np.dtype("float32"), name="a")
        store.close()
        assert not any(store.folder.iterdir())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_fingerprints_tell_vocabularies_and_architectures_apart(tmp_path: pathlib.Path) -> None:
    content = (ROOT / "models/alfworld_tiny/tokenizer.json").read_bytes()
    parsed = json.loads(content)
    known = extension.tokenizer_fingerprint(content)
    assert extension.tokenizer_fingerprint(json.dumps(parsed, indent=3).encode()) == known
    word = sorted(parsed["model"]["vocab"])[0]
    parsed["model"]["vocab"][word] += 1
    assert extension.tokenizer_fingerprint(json.dumps(parsed).encode()) != known
    assert extension.tokenizer_fingerprint(b"nonsense") == ""
    config, _ = load_hf(ROOT / "models/alfworld_tiny")
    served = json.loads((ROOT / "models/alfworld_tiny/config.json").read_text())
    assert extension.architecture(config_json(config, "float32")) == extension.architecture(served)
    assert len(extension.ARCHITECTURE) == 18
    for name in extension.ARCHITECTURE:
        other = {name: {"factor": 3} if name == "rope_scaling" else 3}
        assert extension.architecture(served | other) != extension.architecture(served), name
    newer = {k: v for k, v in served.items() if k != "rope_theta"} | {
        "rope_parameters": {"rope_theta": 10000.0}
    }
    assert extension.architecture(newer) == extension.architecture(served)
    experts = config_json(SMALL["moe_mixed"], "float32")
    newer = experts | {"num_local_experts": experts["num_experts"]}
    newer.pop("num_experts")
    assert extension.architecture(newer) == extension.architecture(experts)
    scaled = config_json(SMALL["llama3"], "float32")
    rope = {"rope_parameters": scaled["rope_scaling"] | {"rope_theta": scaled["rope_theta"]}}
    newer = {k: v for k, v in scaled.items() if k not in ("rope_theta", "rope_scaling")} | rope
    assert extension.architecture(newer) == extension.architecture(scaled)
    # As published folders of Gemma 3: one key is left out, and there are two rotary embeddings.
    gemma = config_json(SMALL["gemma3"], "float32")
    rope = {"full_attention": gemma["rope_scaling"] | {"rope_theta": gemma["rope_theta"]}}
    left_out = ("tie_word_embeddings", "rope_theta", "rope_scaling")
    newer = {k: v for k, v in gemma.items() if k not in left_out} | {"rope_parameters": rope}
    assert extension.architecture(newer) == extension.architecture(gemma)


def test_descriptions_of_qwen3_vl_have_decoder_and_tower(tmp_path: pathlib.Path) -> None:
    content = config_json(VL3, "float32")
    text = content["text_config"]
    newer_text = {k: v for k, v in text.items() if k not in ("rope_theta", "rope_scaling")}
    newer_text["rope_parameters"] = text["rope_scaling"] | {"rope_theta": text["rope_theta"]}
    newer = content | {"text_config": newer_text}
    assert extension.architecture(newer) == extension.architecture(content)
    found = extension.architecture(content)
    assert (found["model_type"], found["num_hidden_layers"]) == ("qwen3_vl", 3)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor_json(VISION3)))
    assert extension._read_tower(newer, tmp_path) == VISION3


def test_descriptions_have_the_tower_and_the_sizes_of_images(tmp_path: pathlib.Path) -> None:
    """Of flat and of nested files: what is missing there is as published."""
    flat = config_json(VL, "float32")
    keys = (
        "model_type",
        "vision_config",
        "image_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    )
    nested = {key: flat[key] for key in keys} | {
        "text_config": flat | {"model_type": "qwen2_5_vl_text"}
    }
    assert extension.architecture(flat) == extension.architecture(nested)
    for raw in (flat, nested):
        assert extension._read_tower(raw, tmp_path) == VISION
    (tmp_path / "preprocessor_config.json").write_text('{"max_pixels": 3136}')
    found = extension.describe_vision(extension._read_tower(nested, tmp_path))
    assert found["vision.max_pixels"] == 3136
    assert found["vision.full_layers"] == [1]
    assert extension.describe_vision(extension._read_tower({"model_type": "qwen2"}, tmp_path)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["vllm.worker.extension", "access", "vllm.worker.guard", "vllm.launch"]
)
def test_what_runs_beside_vllm_needs_neither_jax_nor_torch(module: str) -> None:
    code = (
        f"import sys, gigpo_jax.engines.{module}; "
        "print([m for m in ('jax', 'torch', 'vllm', 'aiohttp', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "[]"
