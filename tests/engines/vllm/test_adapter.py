"""Against a real server that samples with adapters: only the adapter travels, checked, labelled,
verified.
"""

import asyncio
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import EngineLost, SamplingParams
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.engines.remote.protocol import probe_request, read_probe
from gigpo_jax.engines.vllm.launch import ServerProcess, free_ports
from gigpo_jax.models import decoder, lora
from gigpo_jax.models.files.adapter_file import save_adapter
from gigpo_jax.models.files.checksum import folder_checksum
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.lora import LoraConfig
from gigpo_jax.models.text.tokenizer import Tokenizer, load_tokenizer
from tests.engines.vllm import serving

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800), pytest.mark.usefixtures("compiled_once")]

CONFIG = LoraConfig(4, 8.0)
BASE = folder_checksum(serving.TINY)
LIMIT_S = 600.0


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return load_tokenizer(serving.TINY)


@pytest.fixture(scope="module")
def model() -> tuple[decoder.DecoderConfig, decoder.Params]:
    return load_hf(serving.TINY)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, weights: pathlib.Path
) -> Iterator[ServerProcess]:
    """Takes adapters of rank 8 at most."""
    process = serving.start(serving.TINY, tmp_path_factory.mktemp("logs"), weights, lora_rank=4)
    try:
        serving.wait_up(process)
        yield process
    finally:
        process.stop()


def adapted(
    model: tuple[decoder.DecoderConfig, decoder.Params], seed: int
) -> tuple[decoder.Params, decoder.Params]:
    """Parameters with an adapter beside them, and parameters of the merged model."""
    shape, params = model
    start = lora.init_adapter(shape, CONFIG, jax.random.key(seed))
    adapter = serving.shaken(start, seed, 0.05) if seed else start
    merged = lora.merge_adapter(jax.tree.map(lambda x: x.copy(), params), adapter, CONFIG.scale)
    return lora.attach_adapter(params, adapter, CONFIG.scale), merged


def adapters_of(server: ServerProcess) -> list[str]:
    """The names that the server takes for adapters."""
    cards = serving.call(server.url, "/v1/models")["data"]
    return [card["id"] for card in cards if card.get("parent")]


def prompts(words: Tokenizer, count: int) -> list[list[int]]:
    text = (
        "you are in the middle of a room. you see a desk 1 and a shelf 2. "
        "your task is to: look at a mug"
    )
    return [words.encode_chat(text)[: 40 - i] for i in range(count)]


def assert_samples_from(
    engine: RemoteEngine, shape: Any, merged: Any, words: Tokenizer, version: int
) -> None:
    """Responses carry the version and the merged model's log-probabilities."""
    asked = prompts(words, 4)
    for prompt, response in zip(asked, serving.ask(engine, asked, temperature=0.7), strict=True):
        assert response.version == version
        ours = serving.learner_logprobs(shape, merged, prompt, response.tokens, 0.7)
        np.testing.assert_allclose(response.logprobs, ours, atol=1e-4)


def test_an_adapter_is_pushed_and_samples_as_the_merged_model(
    server: ServerProcess, model: Any, words: Tokenizer, weights: pathlib.Path
) -> None:
    shape, params = model
    start, _ = adapted(model, 0)
    with serving.engine(
        shape, start, words, urls=(server.url,), weights_dir=weights, base=BASE
    ) as engine:
        assert_samples_from(
            engine, shape, params, words, 0
        )  # the adapter of the start changes nothing
        for version, seed in ((1, 1), (2, 2), (3, 1)):  # version 3 is version 1 again
            tree, merged = adapted(model, seed)
            engine.update_weights(tree, version)
            assert_samples_from(engine, shape, merged, words, version)
            assert engine.last_push["bytes"] == 4 * lora.adapter_param_count(shape, CONFIG)
            assert engine.last_push["probe_difference"] < 1e-4
        assert engine.retries == 0
        assert len(adapters_of(server)) == 1
        assert (
            len(list(weights.iterdir())) == 2
        )  # the newest, and the one before it for late requests
    assert list(weights.iterdir()) == []


def test_responses_during_pushes_are_of_the_version_that_they_name(
    server: ServerProcess, model: Any, words: Tokenizer, weights: pathlib.Path
) -> None:
    """Requests come without a break while adapters follow each other."""
    shape, _ = model
    trees = [adapted(model, seed) for seed in (1, 2, 3)]
    asked = prompts(words, 12)
    responses = []

    async def play(engine: RemoteEngine) -> None:
        pushed = asyncio.Event()

        async def stream(number: int) -> None:
            step = 0
            while not pushed.is_set() or step == 0:
                params = SamplingParams(key=(number, step), session=(0, number), max_tokens=8)
                at_least = engine._version
                response = await engine.generate(asked[number], params)
                assert response.version >= at_least
                responses.append((asked[number], response))
                step += 1

        streams = [asyncio.ensure_future(stream(number)) for number in range(len(asked))]
        for version, (tree, _) in enumerate(trees[1:], 1):
            await asyncio.sleep(0.3)
            await asyncio.get_running_loop().run_in_executor(
                None, engine.update_weights, tree, version
            )
        pushed.set()
        await asyncio.gather(*streams)

    with serving.engine(
        shape, trees[0][0], words, urls=(server.url,), weights_dir=weights, base=BASE
    ) as engine:
        asyncio.run(play(engine))
        assert engine._pool.servers[0].state == "ready"
    assert {response.version for _, response in responses} == {0, 1, 2}
    for prompt, response in responses:
        ours = serving.learner_logprobs(
            shape, trees[response.version][1], prompt, response.tokens, 1.0
        )
        np.testing.assert_allclose(response.logprobs, ours, atol=1e-4)


def test_an_exported_adapter_is_one_for_vllm(
    server: ServerProcess, model: Any, words: Tokenizer, weights: pathlib.Path
) -> None:
    """In PEFT's layout as export writes it, with the scale in its config, loaded by vLLM's own
    endpoint.
    """
    shape, _ = model
    adapter = serving.shaken(lora.init_adapter(shape, CONFIG, jax.random.key(8)), 8, 0.05)
    numbers = lora.layer_numbers(shape)
    save_adapter(
        weights / "exported", CONFIG, adapter, base="models/alfworld_tiny", numbers=numbers
    )

    adapter_name = {"lora_name": "exported"}
    folder = str(weights / "exported")
    serving.fetch(server.url, "/v1/load_lora_adapter", adapter_name | {"lora_path": folder})
    (prompt,) = prompts(words, 1)
    body = probe_request(prompt) | {"model": "exported"}
    answer = serving.call(server.url, "/inference/v1/generate", body)
    merged = lora.merge_adapter(jax.tree.map(lambda x: x.copy(), model[1]), adapter, CONFIG.scale)
    ours = serving.learner_logprobs(shape, merged, prompt[:1], np.asarray(prompt[1:]), 1.0)
    np.testing.assert_allclose(read_probe(answer, prompt), ours, atol=1e-4)
    serving.fetch(server.url, "/v1/unload_lora_adapter", adapter_name)
    shutil.rmtree(weights / "exported")


def test_what_does_not_belong_is_refused_at_once(
    server: ServerProcess,
    model: Any,
    words: Tokenizer,
    weights: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    shape, params = model
    tree, merged = adapted(model, 4)
    common: dict[str, Any] = {"urls": (server.url,), "weights_dir": weights}
    with pytest.raises(InputError, match=r"model\.lora\.rank=0; start it without --lora-rank"):
        serving.engine(shape, params, words, **common)
    large = lora.attach_adapter(
        params, lora.init_adapter(shape, LoraConfig(9, 8.0), jax.random.key(0)), 1.0
    )
    with pytest.raises(InputError, match=r"rank is 8, model\.lora\.rank=9"):
        serving.engine(shape, large, words, **common, base=BASE)
    with pytest.raises(InputError, match=r"not the weights of the learner's model\.path"):
        serving.engine(shape, tree, words, **common, base="0" * 32)
    with serving.engine(
        shape, tree, words, **common, base=BASE
    ) as engine:  # and it continues as if nothing had been
        assert_samples_from(engine, shape, merged, words, 0)


def test_a_damaged_adapter_is_never_loaded_and_the_last_good_one_is_still_there(
    server: ServerProcess,
    model: Any,
    words: Tokenizer,
    weights: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    shape, _ = model
    tree, merged = adapted(model, 5)
    engine = serving.engine(shape, tree, words, urls=(server.url,), weights_dir=weights, base=BASE)
    with engine:
        write = engine._store.write_adapter

        def damaged(*arguments: Any, name: str, **settings: Any) -> str:
            checksum = write(*arguments, name=name, **settings)
            file = weights / name / "adapter_model.safetensors"
            content = bytearray(file.read_bytes())
            content[-3] ^= 64
            file.write_bytes(content)
            return checksum

        monkeypatch.setattr(engine._store, "write_adapter", damaged)
        with pytest.raises(EngineLost, match="the learner wrote"):
            engine.update_weights(adapted(model, 6)[0], 1)
        monkeypatch.undo()
    # Nothing of it reached the model: the same server takes the next run.
    with serving.engine(
        shape, tree, words, urls=(server.url,), weights_dir=weights, base=BASE
    ) as engine:
        assert_samples_from(engine, shape, merged, words, 0)


def test_killed_and_started_again_it_gets_the_current_adapter(
    model: Any, words: Tokenizer, tmp_path: pathlib.Path
) -> None:
    """Nothing is sampled from the bare model in between."""
    shape, _ = model
    tree, merged = adapted(model, 7)
    (port,) = free_ports(1)
    settings = serving.server_settings(
        serving.TINY, tmp_path / "logs", tmp_path / "weights", lora_rank=4
    )
    process = ServerProcess(settings, port, serving.KEY)
    said = []
    owned: dict[str, Any] = {
        "processes": (process,),
        "weights_dir": tmp_path / "weights",
        "said": said,
    }
    with serving.engine(shape, adapted(model, 0)[0], words, **owned, base=BASE) as engine:
        engine.update_weights(tree, 1)
        serving.kill_hard(process)
        assert_samples_from(engine, shape, merged, words, 1)
    assert sum("restarted (1 of 2)" in line for line in said) == 1


def test_a_run_trains_an_adapter_with_servers(
    server: ServerProcess, weights: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "gigpo_jax.main",
        "--config=configs/quickstart.py",
        f"--workdir={tmp_path}",
    ]
    command += ["--config.eval.panel=", "--config.env.workers=1", "--config.train.iterations=2"]
    command += ["--config.train.groups=4", "--config.optim.lr=0.003", "--config.model.lora.rank=4"]
    command += ["--config.engine.name=vllm", f"--config.engine.urls={server.url}"]
    command += [f"--config.engine.weights_dir={weights}"]
    environment = os.environ | {"VLLM_API_KEY": serving.KEY}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=serving.ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][1:]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["rollout/staleness"] == row["episode/aborted"] == 0
        assert row["policy/behaviour_mismatch"] < 1e-4
    assert rows[1]["policy/grad_norm"] > 0
