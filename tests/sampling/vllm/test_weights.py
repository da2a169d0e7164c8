"""Weight files: written by the learner, read and refused as the server's worker does (which needs no jax)."""

import asyncio
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import tracemalloc

import aiohttp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from gigpo_jax.errors import InputError
from gigpo_jax.models import qwen2
from gigpo_jax.models.hf_config import config_json
from gigpo_jax.models.weights import load_hf, save_hf
from gigpo_jax.sampling.vllm import weight_store
from gigpo_jax.sampling.vllm.worker import extension

ROOT = pathlib.Path(__file__).parents[3]
SHAPE = qwen2.Qwen2Config(40, 16, 32, 2, 4, 2, 4, tie_word_embeddings=False)


@pytest.fixture
def params() -> qwen2.Params:
    return qwen2.init(SHAPE, jax.random.key(0))


def test_a_pushed_file_has_the_tensors_that_a_saved_folder_has(tmp_path: pathlib.Path, params: qwen2.Params) -> None:
    store = weight_store.WeightStore(tmp_path / "w")
    file, checksum = store.write(SHAPE, params, dtype=jnp.dtype("bfloat16"), name="one")
    save_hf(tmp_path / "hf", SHAPE, params, dtype="bfloat16")
    with (
        safetensors.safe_open(file, "np") as ours,
        safetensors.safe_open(tmp_path / "hf/model.safetensors", "np") as hf,
    ):
        assert set(ours.keys()) == set(hf.keys())
        for name in hf.keys():  # noqa: SIM118  (not a dict)
            np.testing.assert_array_equal(ours.get_tensor(name), hf.get_tensor(name))
    data = file.read_bytes()
    header, base = extension.read_header(data, "one")
    assert extension.checksum_of(header, data, base) == checksum
    flipped = bytearray(data)
    flipped[-3] ^= 1
    assert extension.checksum_of(header, bytes(flipped), base) != checksum


def test_only_the_newest_file_is_kept_and_none_after_the_end(params: qwen2.Params) -> None:
    store = weight_store.WeightStore()
    assert store.folder.stat().st_mode & 0o077 == 0
    for name in ("a", "b"):
        store.write(SHAPE, params, dtype=np.dtype("float32"), name=name)
        assert [path.name for path in store.folder.iterdir()] == [f"{name}.safetensors"]
    store.close()
    assert not store.folder.exists()


def test_a_push_holds_one_array_at_a_time_in_host_memory(tmp_path: pathlib.Path) -> None:
    shape = qwen2.Qwen2Config(512, 128, 352, 8, 4, 2, 32, tie_word_embeddings=False)
    params = qwen2.init(shape, jax.random.key(0))
    largest = max(leaf.size for leaf in jax.tree.leaves(params)) * 4
    store = weight_store.WeightStore(tmp_path)
    for dtype in ("float32", "bfloat16"):
        tracemalloc.start()
        store.write(shape, params, dtype=jnp.dtype(dtype), name=dtype)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.2 * largest < 0.6 * 4 * qwen2.param_count(shape), (peak, largest)


def test_what_a_killed_run_left_in_memory_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(weight_store, "TMPFS", tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for number in (ended.pid, os.getpid()):
        (tmp_path / f"{weight_store.PREFIX}.{number}.ff").mkdir()
    store = weight_store.WeightStore()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([f"{weight_store.PREFIX}.{os.getpid()}.ff", store.folder.name])
    store.close()


def test_a_folder_without_room_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, params: qwen2.Params
) -> None:
    store = weight_store.WeightStore(tmp_path)
    monkeypatch.setattr(
        weight_store.shutil, "disk_usage", lambda _: os.terminal_size((0, 0)) and type("D", (), {"free": 9})
    )
    with pytest.raises(InputError, match=r"has 0\.0 GiB free, a push needs"):
        store.write(SHAPE, params, dtype=np.dtype("float32"), name="a")


def test_a_server_takes_files_from_its_folder_only(allowed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    good = allowed / "w.safetensors"
    good.touch()
    assert extension.allowed_file(str(good)) == good
    outside = tmp_path / "w.safetensors"
    outside.touch()
    (allowed / "link.safetensors").symlink_to(outside)
    (allowed / "w.bin").touch()
    for path, says in [
        (outside, "not in the folder"),
        (allowed / ".." / "w.safetensors", "not in the folder"),
        (allowed / "link.safetensors", "not in the folder"),
        ("/etc/passwd", "not in the folder"),
        (allowed / "w.bin", "not a .safetensors"),
        (allowed / "absent.safetensors", "no such file"),
    ]:
        with pytest.raises(extension.Refused, match=says):
            extension.allowed_file(str(path))


def test_without_a_folder_nothing_is_taken(allowed: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(extension.WEIGHTS_DIR)
    with pytest.raises(extension.Refused, match="GIGPO_WEIGHTS_DIR"):
        extension.allowed_file(str(allowed / "w.safetensors"))


def test_broken_files_are_refused() -> None:
    good = safetensors.numpy.save({"a": np.zeros((2, 3), np.float32)})
    assert list(extension.read_header(good, "f")[0]) == ["a"]
    size = int.from_bytes(good[:8], "little")
    head = json.loads(good[8 : 8 + size])
    head["a"]["shape"] = [2, 4]
    lying = json.dumps(head).encode()
    for data in (
        b"",
        b"\x01",
        good[:-1],
        good + b"\0",
        b"\xff" * 64,
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{a",
        len(lying).to_bytes(8, "little") + lying + good[8 + size :],
    ):
        with pytest.raises(extension.Refused):
            extension.read_header(data, "f")


class Worker(extension.WeightLoader):
    """The extension without vLLM: `_load` notes what the model would have been given."""

    def __init__(self, model: pathlib.Path) -> None:
        self.model_config = type("Config", (), {"model": str(model), "tokenizer": str(model)})
        self.loaded: list[str] = []

    def _load(self, header: dict, data: object, base: int) -> None:
        self.loaded = list(header)


def test_the_model_is_touched_only_by_a_file_of_its_own_tensors(
    allowed: pathlib.Path, tmp_path: pathlib.Path, params: qwen2.Params
) -> None:
    save_hf(tmp_path / "served", SHAPE, params)
    worker, store = Worker(tmp_path / "served"), weight_store.WeightStore(allowed)
    file, checksum = store.write(SHAPE, params, dtype=np.dtype("float32"), name="a")
    wrong = worker.gigpo_load(str(file), "0" * 32)
    assert "checksum" in wrong["error"]
    assert worker.loaded == []
    good = worker.gigpo_load(str(file), checksum)
    assert good["checksum"] == checksum
    assert good["bytes"] == 4 * qwen2.param_count(SHAPE)
    assert "lm_head.weight" in worker.loaded
    other = qwen2.Qwen2Config(40, 16, 32, 1, 4, 2, 4, tie_word_embeddings=False)
    worker.loaded = []
    file, checksum = store.write(other, qwen2.init(other, jax.random.key(0)), dtype=np.dtype("float32"), name="b")
    assert "not those of the served model" in worker.gigpo_load(str(file), checksum)["error"]
    assert worker.loaded == []


def test_weights_are_pulled_over_http_with_the_key_from_one_address(
    allowed: pathlib.Path, tmp_path: pathlib.Path, params: qwen2.Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_hf(tmp_path / "served", SHAPE, params)
    worker, store = Worker(tmp_path / "served"), weight_store.WeightStore(tmp_path / "learner")
    file, checksum = store.write(SHAPE, params, dtype=np.dtype("float32"), name="a")

    async def pulls() -> list[dict]:
        runner, port = await weight_store.serve(store, "127.0.0.1", 0, "sesame")
        base = f"http://127.0.0.1:{port}/weights/"
        monkeypatch.setenv(extension.WEIGHTS_URL, base)
        answers = []
        for key, url in [
            ("sesame", base + file.name),
            ("wrong", base + file.name),
            ("sesame", base + "old.safetensors"),
            ("sesame", f"http://127.0.0.1:{port}/elsewhere"),
            ("sesame", "file:///etc/passwd"),
            ("sesame", f"http://localhost:{port}/weights/{file.name}"),
            ("sesame", f"http://127.0.0.1:{port + 1}/weights/{file.name}"),
        ]:
            monkeypatch.setenv("VLLM_API_KEY", key)
            answers.append(await asyncio.to_thread(worker.gigpo_pull, url, checksum))
        async with aiohttp.ClientSession() as session, session.get(base + file.name) as bare:
            assert bare.status == 401
        await runner.cleanup()
        return answers

    good, *bad = asyncio.run(pulls())
    assert good["checksum"] == checksum
    assert ["401" in bad[0]["error"], "404" in bad[1]["error"]] == [True, True]
    assert all("not under the address" in answer["error"] for answer in bad[2:])
    assert list(allowed.iterdir()) == []


def test_a_pull_follows_no_redirect_leaves_its_address_nowhere_and_wants_the_whole_file(
    allowed: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith("moved"):
                self.send_response(302)
                self.send_header("Location", "/weights/short")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", "9")
            self.end_headers()
            self.wfile.write(b"half")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}/weights/"
        monkeypatch.setenv(extension.WEIGHTS_URL, base)
        for name, says in (("moved", "302"), ("../short", "not a plain http address"), ("short", "4 of 9 bytes")):
            with pytest.raises(extension.Refused, match=says):
                extension.pull(base + name, "x")
        server.shutdown()
    assert list(allowed.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: pathlib.Path, params: qwen2.Params) -> None:
    store = weight_store.WeightStore(tmp_path)
    store.write(SHAPE, params, dtype=np.dtype("float32"), name="a")
    broken = params | {"head": np.array(["not", "numbers"])}
    with pytest.raises((TypeError, ValueError)):
        store.write(SHAPE, broken, dtype=np.dtype("float32"), name="b")
    assert list(tmp_path.iterdir()) == []


def test_fingerprints_tell_vocabularies_and_architectures_apart(tmp_path: pathlib.Path) -> None:
    content = (ROOT / "models/alfworld_tiny/tokenizer.json").read_bytes()
    parsed, known = json.loads(content), extension.tokenizer_fingerprint(content)
    assert extension.tokenizer_fingerprint(json.dumps(parsed, indent=3).encode()) == known
    word = sorted(parsed["model"]["vocab"])[0]
    parsed["model"]["vocab"][word] += 1
    assert extension.tokenizer_fingerprint(json.dumps(parsed).encode()) != known
    assert extension.tokenizer_fingerprint(b"nonsense") == ""
    config, _ = load_hf(ROOT / "models/alfworld_tiny")
    served = json.loads((ROOT / "models/alfworld_tiny/config.json").read_text())
    assert extension.architecture(config_json(config, "float32")) == extension.architecture(served)
    assert len(extension.ARCHITECTURE) == 10
    for name in extension.ARCHITECTURE:
        assert extension.architecture(served | {name: 3}) != extension.architecture(served), name
    newer = {k: v for k, v in served.items() if k != "rope_theta"} | {"rope_parameters": {"rope_theta": 10000.0}}
    assert extension.architecture(newer) == extension.architecture(served)


@pytest.mark.parametrize("module", ["extension", "adapter", "access", "guard"])
def test_what_runs_beside_vllm_needs_neither_jax_nor_torch(module: str) -> None:
    code = (
        f"import sys, gigpo_jax.sampling.vllm.worker.{module}; "
        "print([m for m in ('jax', 'torch', 'vllm', 'aiohttp', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
