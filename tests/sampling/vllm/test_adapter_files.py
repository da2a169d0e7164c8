"""What a server makes of an adapter's file before vLLM sees it, and which folders it loads from; no vLLM needed."""

import asyncio
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from gigpo_jax.models import lora, qwen2
from gigpo_jax.models.adapter_file import load_adapter
from gigpo_jax.models.linears import TARGETS
from gigpo_jax.models.lora import LoraConfig
from gigpo_jax.models.weights import load_hf, save_hf
from gigpo_jax.sampling.vllm import weight_store
from gigpo_jax.sampling.vllm.worker import access as vllm_access
from gigpo_jax.sampling.vllm.worker import adapter as vllm_adapter
from gigpo_jax.sampling.vllm.worker import extension as vllm_extension
from tests.models.test_lora import SHAPE, random_adapter, random_params

CONFIG = LoraConfig(4, 4.0, ("q_proj", "down_proj"))


class Worker(vllm_adapter.AdapterLoader):
    """The extension without vLLM."""

    def __init__(self, model: pathlib.Path, rank: int = 8) -> None:
        self.model_config = type("Config", (), {"model": str(model), "tokenizer": str(model)})
        self.vllm_config = type("Config", (), {"lora_config": type("Lora", (), {"max_lora_rank": rank})})


@pytest.fixture
def served(tmp_path: pathlib.Path) -> pathlib.Path:
    save_hf(tmp_path / "served", SHAPE, random_params(SHAPE))
    return tmp_path / "served"


def staged_in(allowed: pathlib.Path) -> list[str]:
    return sorted(path.name for path in allowed.iterdir() if not path.name.endswith(".safetensors"))


def test_a_good_adapter_is_staged_as_peft_has_it_and_two_stay(allowed: pathlib.Path, served: pathlib.Path) -> None:
    worker, store = Worker(served), weight_store.WeightStore(allowed)
    base = vllm_adapter.folder_checksum(served)
    for number in range(3):
        adapter = random_adapter(SHAPE, CONFIG, number)
        file, checksum = store.write_adapter(adapter, dtype=np.dtype("float32"), name=f"run.{number}")
        report = worker.gigpo_stage(str(file), checksum, base, "ab", f"run.{number}")
        assert report["checksum"] == checksum
        assert report["bytes"] == 4 * lora.param_count(SHAPE, CONFIG)
        again = load_adapter(report["folder"], SHAPE, CONFIG)
        np.testing.assert_array_equal(again["layers"]["down"]["lora_a"], adapter["layers"]["down"]["lora_a"])
    assert staged_in(allowed) == ["adapter.ab.run.1", "adapter.ab.run.2"]
    # The second worker of a server finds the folder there.
    assert worker.gigpo_stage(str(file), checksum, base, "ab", "run.2")["folder"] == report["folder"]
    assert worker.gigpo_stage(str(file), checksum, base, "cd", "run.2")["checksum"] == checksum
    assert staged_in(allowed) == ["adapter.ab.run.1", "adapter.ab.run.2", "adapter.cd.run.2"]
    assert "keeps its model" in worker.gigpo_load(str(file), checksum)["error"]


def test_what_a_killed_worker_left_goes_and_what_another_removes_is_no_error(
    allowed: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for left in (".adapter.ab.run.0.17", ".adapter.ab.run.1.18", ".adapter.cd.run.0.17"):
        (allowed / left).mkdir()
    (allowed / "adapter.ab.gone").symlink_to(allowed / "nowhere")  # listed, and not there any more when looked at
    folder = vllm_adapter.stage(b"data", 4, ["q_proj"], "ab", "run.1")
    assert (folder / "adapter_model.safetensors").read_bytes() == b"data"
    (allowed / "adapter.ab.gone").unlink()
    # Of this server all but what another worker of it is writing at the moment; nothing of other servers.
    assert staged_in(allowed) == [".adapter.ab.run.1.18", ".adapter.cd.run.0.17", "adapter.ab.run.1"]


def test_servers_that_end_with_the_run_leave_no_adapters(allowed: pathlib.Path) -> None:
    for name in ("ab", "cd"):
        vllm_adapter.stage(b"data", 4, ["q_proj"], name, "run.1")
    (allowed / ".adapter.ab.run.2.17").mkdir()
    weight_store.WeightStore(allowed).close(["ab"])
    assert staged_in(allowed) == ["adapter.cd.run.1"]


def test_nothing_else_gets_past(allowed: pathlib.Path, served: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store, base = weight_store.WeightStore(allowed), vllm_adapter.folder_checksum(served)
    adapter = random_adapter(SHAPE, CONFIG)
    file, checksum = store.write_adapter(adapter, dtype=np.dtype("float32"), name="a")
    good = file.read_bytes()

    def says(checksum: str = checksum, base: str = base, source: Any = file, name: str = "n", rank: int = 8) -> str:
        return Worker(served, rank).gigpo_stage(str(source), checksum, base, "ab", name)["error"]

    assert "the file was read wrongly" in says("0" * 32)
    assert "not the weights of the learner's model.path" in says(base="0" * 32)
    assert "not plain names" in says(name="../n")
    assert "takes 2 at most" in says(rank=2)
    outside = tmp_path / "a.safetensors"
    outside.write_bytes(good)
    assert "not in the folder" in says(source=outside)
    assert "pulls no weights" in says(source="http://example.invalid/a.safetensors")
    file.write_bytes(good[:-4])
    assert "cut short" in says()
    file.write_bytes(good[:-4] + b"\0\0\0\1")
    assert "the file was read wrongly" in says()
    tensors = safetensors.numpy.load(good)
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    for change, what in (
        ({first: None}, "pairs are missing"),
        ({first: tensors[first][:2].copy()}, "another rank"),
        ({first: tensors[first][:, :5].copy()}, "does not fit the served"),
        ({"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": tensors[first]}, "not of a pair"),
        ({"base_model.model.lm_head.lora_A.weight": tensors[first]}, "not of a pair"),
        ({"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude": tensors[first]}, "not of a pair"),
    ):
        changed = {name: value for name, value in (tensors | change).items() if value is not None}
        safetensors.numpy.save_file(changed, file)
        assert what in says(), change
    assert staged_in(allowed) == []


def test_a_model_folder_is_told_by_its_tensors_alone(served: pathlib.Path, tmp_path: pathlib.Path) -> None:
    known = vllm_adapter.folder_checksum(served)
    shape, params = load_hf(served)
    save_hf(tmp_path / "parts", shape, params, max_shard_bytes=20_000)
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert vllm_adapter.folder_checksum(tmp_path / "parts") == known
    params["layers"]["up"]["kernel"] = params["layers"]["up"]["kernel"].at[1, 2, 3].add(1e-6)
    save_hf(tmp_path / "other", shape, params)
    assert vllm_adapter.folder_checksum(tmp_path / "other") != known
    assert vllm_adapter.folder_checksum(tmp_path / "absent") == ""


def ask(path: str, body: bytes, key: str = "sesame", root: str = "") -> tuple[int, bytes]:
    """What the middleware answers, or 200 and the body that the application was given."""
    got: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, send
        got["body"] = (await receive())["body"]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        got.setdefault("status", message.get("status"))

    scope = {"type": "http", "path": path, "root_path": root, "headers": [(b"authorization", f"Bearer {key}".encode())]}
    asyncio.run(vllm_access.RequireKey(app)(scope, receive, send))
    return got.get("status", 200), got.get("body", b"")


def test_only_staged_adapters_are_loaded_whoever_asks(
    allowed: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sesame")

    def load(path: object, **more: object) -> int:
        body = json.dumps({"lora_name": "n", "lora_path": str(path)} | more).encode()
        status, seen = ask("/v1/load_lora_adapter", body)
        assert seen == (body if status == 200 else b"")
        return status

    (allowed / "adapter.ab.x").mkdir()
    assert load(allowed / "adapter.ab.x") == 200
    (allowed / "adapter.link").symlink_to(tmp_path)
    for path in (
        "/etc",
        allowed,
        allowed / "other",
        allowed / "adapter.ab.x/..",
        allowed / "adapter.link",
        "some/name",
    ):
        assert load(path) == 403
    assert load(allowed / "adapter.ab.x", padding="x" * 70000) == 403
    assert ask("/v1/load_lora_adapter", b"no json")[0] == 403
    assert ask("/v1/load_lora_adapter/", b"no json")[0] == 403
    # Started with --root-path, a server has its routes under that too.
    assert ask("/x/v1/load_lora_adapter", b"no json", root="/x")[0] == 403
    assert ask("/x/adapters", b"", root="/x")[0] == 403
    assert ask("/adapters", json.dumps({"name": "n", "src": str(allowed / "adapter.ab.x")}).encode())[0] == 403
    assert ask("/adapters/n", b"")[0] == 403
    assert ask("/v1/load_lora_adapter", b"{}", key="wrong")[0] == 401
    assert ask("/inference/v1/generate", b"{}") == (200, b"{}")
    monkeypatch.delenv(vllm_extension.WEIGHTS_DIR)
    assert load(allowed / "adapter.ab.x") == 403
    assert vllm_access.FOLDER == vllm_extension.WEIGHTS_DIR
    assert vllm_access.STAGED == vllm_adapter.STAGED + "."


def test_names_of_pairs_are_known_for_every_target() -> None:
    header = {
        f"base_model.model.model.layers.0.{block}.{name}.lora_{part}.weight": {"shape": [1, 1]}
        for block, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down")))
        for name in (f"{short}_proj" for short in names)
        for part in "AB"
    }
    kernels = {name.removeprefix("base_model.model.").split(".lora_")[0] + ".weight": [1, 1] for name in header}
    assert vllm_adapter.check_pairs(header, kernels) == (1, sorted(TARGETS))
    assert qwen2.adapted_linears(random_params(SHAPE)) == ()
