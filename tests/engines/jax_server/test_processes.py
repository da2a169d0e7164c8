"""`gigpo engine` in a process of its own: the tokens of this process, and a server that is killed,
hangs, or is somebody else's.
"""

import dataclasses
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, EngineLost
from gigpo_jax.engines.jax_server.client import KEY, JaxServer
from gigpo_jax.engines.remote import server as remote_server
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.inflight import logprobs_across
from tests.engines.jax_server import serving
from tests.engines.vllm.serving import ROOT, TINY, ask, in_process, learner_logprobs, shaken

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def check_push_in_flight(
    config: Any, params: Any, words: Any, folder: pathlib.Path, url: str
) -> None:
    """Pushes weights while requests run, and checks each token's version and log-probability."""
    newer = shaken(params, 3)
    prompts = [words.encode_chat("you are in a room .")] * 100
    responses: list[Completion] = []
    with serving.engine(config, params, words, folder, url, inflight=True) as engine:
        asking = threading.Thread(
            target=lambda: responses.extend(ask(engine, prompts, max_tokens=64))
        )
        asking.start()
        deadline = time.monotonic() + 60
        running = 0
        while not running:
            assert time.monotonic() < deadline
            with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
                running = json.load(answer)["running"]
        engine.update_weights(newer, 1)
        asking.join(300)
        assert engine.retries == 0
    assert [response.tokens.size for response in responses] == [64] * 100
    prompt = np.array(prompts[:1])
    mixed = [response for response in responses if response.versions is not None]
    assert mixed
    for response in mixed[:2]:
        first = int(np.sum(response.versions == 0))
        assert response.versions.tolist() == [0] * first + [1] * (64 - first)
        assert response.version == 0
        expected = logprobs_across(config, params, newer, prompt, response.tokens[None], first)[0]
        np.testing.assert_allclose(response.logprobs, expected, atol=1e-4)
        by_old = learner_logprobs(config, params, prompts[0], response.tokens, 1.0)
        assert np.abs(response.logprobs - by_old)[first:].max() > 1e-2
    # Those that had not begun are of the new weights alone.
    whole = [response for response in responses if response.versions is None]
    response = whole[-1]
    assert response.version == 1
    expected = learner_logprobs(config, newer, prompts[0], response.tokens, 1.0)
    np.testing.assert_allclose(response.logprobs, expected, atol=1e-4)


def test_tokens_are_those_of_this_process_through_a_kill_a_hang_and_a_stranger(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One server, because each takes seconds to start."""
    config, params = load_hf(TINY)
    words = load_tokenizer(TINY)
    newer = shaken(params, 1)
    prompts = [words.encode_chat(f"you are in room {number} .") for number in range(16)]
    with in_process(config, params, words) as engine:
        expected = [ask(engine, prompts)]
        engine.update_weights(newer, 1)
        expected.append(ask(engine, prompts))
    said: list[str] = []
    folder = tmp_path / "weights"
    with (
        serving.server(tmp_path) as server,
        serving.engine(config, params, words, folder, server.url, said=said) as engine,
    ):
        responses = [ask(engine, prompts)]
        engine.update_weights(newer, 1)
        responses.append(ask(engine, prompts))
        for version in range(2):
            for response, other in zip(responses[version], expected[version], strict=True):
                np.testing.assert_array_equal(response.tokens, other.tokens)
                np.testing.assert_array_equal(response.logprobs, other.logprobs)
                assert (response.finish_reason, response.version) == (other.finish_reason, version)
        # Killed with requests under way, and started again by its supervisor.
        again: list[list] = []
        asking = threading.Thread(target=lambda: again.append(ask(engine, prompts)))
        asking.start()
        server.end(signal.SIGKILL)
        server.start()
        asking.join(300)
        for response, other in zip(again[0], expected[1], strict=True):
            np.testing.assert_array_equal(response.tokens, other.tokens)
            assert response.version == 1
        # Another learner has given it other weights: they come back before anything counts.
        with serving.engine(config, params, words, tmp_path / "other", server.url) as stranger:
            assert ask(stranger, prompts[:1])[0].version == 0
        response = ask(engine, prompts[:1])[0]
        np.testing.assert_array_equal(response.tokens, expected[1][0].tokens)
        assert response.version == 1
        check_push_in_flight(config, params, words, tmp_path / "in flight", server.url)
        # It hangs: no answer within the limits, and no other server.
        monkeypatch.setattr(remote_server, "QUICK_S", 0.5)
        limits = dataclasses.replace(serving.LIMITS, connect_s=1.0, request_s=2.0)
        with serving.engine(config, params, words, folder, server.url, limits=limits) as hurried:
            server.send(signal.SIGSTOP)
            with pytest.raises(EngineLost, match=rf"{server.url}: not up within 1 s \(/weight_in"):
                ask(hurried, prompts[:1])
            server.send(signal.SIGCONT)
        # Devices of another kind are said where their log-probabilities are taken for the learner's.
        for device, warns in (("", False), ("cpu", False), ("TPU v5 lite", True)):
            kind = functools.partial(JaxServer, folder=folder, device=device)
            serving.engine(config, params, words, folder, server.url, server=kind).close()
            assert ("computes on cpu, the learner on TPU v5 lite" in caplog.text) == warns
        # With other settings the learner refuses it before the first push.
        with pytest.raises(
            InputError, match=r"takes 96 tokens, .* are 97; start it with the learn"
        ):
            serving.engine(config, params, words, folder, server.url, max_length=97)
        with pytest.raises(InputError, match="its dtype is 'float32', the learner needs 'bfloat"):
            serving.engine(config, params, words, folder, server.url, dtype="bfloat16")
        keeping = functools.partial(JaxServer, folder=folder, keeps_entropies=True)
        with pytest.raises(
            InputError, match=r"entropies is False, .* make engine\.entropies of both"
        ):
            serving.engine(config, params, words, folder, server.url, server=keeping)
        with pytest.raises(InputError, match=f"refuses the key .*; set {KEY} to the server's"):
            serving.engine(config, params, words, folder, server.url, key="wrong")
        assert server.end(signal.SIGTERM) == 0
    text = server.log.read_text()
    assert "Traceback" not in text
    assert f"serving on {server.url}" in text
    assert "MB in" in text


def test_a_server_without_a_key_or_with_a_learners_flags_is_one_line(
    tmp_path: pathlib.Path,
) -> None:
    command = [sys.executable, "-m", "gigpo_jax", "engine", *serving.FLAGS]
    environment = {name: value for name, value in os.environ.items() if name != KEY}
    for flags, says in (
        ((), f"gigpo_jax: {KEY}: not set; export a random"),
        (("--config.distributed=True",), "gigpo_jax: config.distributed=True: each host serves"),
    ):
        done = subprocess.run(
            [*command, f"--workdir={tmp_path}", *flags],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=ROOT,
            env=environment,
        )
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(says)
    assert list(tmp_path.iterdir()) == []
