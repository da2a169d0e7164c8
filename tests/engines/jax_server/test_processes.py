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
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.engines.jax_server.client import KEY, JaxServer
from gigpo_jax.engines.remote import server as remote_server
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.inflight import logprobs_across
from tests.engines.jax_server import serving
from tests.engines.vllm.serving import ROOT, TINY, ask, in_process, learner_logprobs, shaken

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclasses.dataclass(frozen=True)
class Learner:
    """A learner: its policy, and engines of it over a server.

    Attributes:
      config: Shape of the model.
      params: Its first weights.
      words: Its tokenizer.
      folder: Folder of its weights.
      url: Address of the server.
    """

    config: Any
    params: Any
    words: Any
    folder: pathlib.Path
    url: str

    def engine(self, **changes: Any) -> RemoteEngine:
        return serving.engine(
            self.config, self.params, self.words, self.folder, self.url, **changes
        )


def check_push_in_flight(learner: Learner) -> None:
    """Pushes weights while requests run, and checks each token's version and log-probability."""
    config, params = learner.config, learner.params
    newer = shaken(params, 3)
    prompts = [learner.words.encode_chat("you are in a room .")] * 100
    responses: list[Completion] = []
    with learner.engine(inflight=True) as engine:
        asking = threading.Thread(
            target=lambda: responses.extend(ask(engine, prompts, max_tokens=64))
        )
        asking.start()
        deadline = time.monotonic() + 60
        running = 0
        while not running:
            assert time.monotonic() < deadline
            with urllib.request.urlopen(f"{learner.url}/health", timeout=10) as answer:
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


def ask_both_versions(
    engine: JaxEngine | RemoteEngine, newer: Any, prompts: list[list[int]]
) -> list[list[Completion]]:
    """Responses before and after a push of newer weights."""
    first = ask(engine, prompts)
    engine.update_weights(newer, 1)
    return [first, ask(engine, prompts)]


def check_equal(responses: list[list[Completion]], expected: list[list[Completion]]) -> None:
    """Responses of each version are equal, bit by bit."""
    for version in range(2):
        for response, other in zip(responses[version], expected[version], strict=True):
            np.testing.assert_array_equal(response.tokens, other.tokens)
            np.testing.assert_array_equal(response.logprobs, other.logprobs)
            assert (response.finish_reason, response.version) == (other.finish_reason, version)


def check_kill(
    server: serving.Process,
    engine: RemoteEngine,
    prompts: list[list[int]],
    expected: list[Completion],
) -> None:
    """Kills the server with requests under way; its supervisor starts it again."""
    responses: list[Completion] = []
    asking = threading.Thread(target=lambda: responses.extend(ask(engine, prompts)))
    asking.start()
    server.end(signal.SIGKILL)
    server.start()
    asking.join(300)
    for response, other in zip(responses, expected, strict=True):
        np.testing.assert_array_equal(response.tokens, other.tokens)
        assert response.version == 1


def check_stranger(
    stranger: Learner, engine: RemoteEngine, prompt: list[int], expected: Completion
) -> None:
    """Another learner gives the server other weights: they come back before anything counts."""
    with stranger.engine() as other:
        assert ask(other, [prompt])[0].version == 0
    (response,) = ask(engine, [prompt])
    np.testing.assert_array_equal(response.tokens, expected.tokens)
    assert response.version == 1


def check_hang(
    server: serving.Process,
    learner: Learner,
    prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server stops: no answer within the limits, and no other server."""
    monkeypatch.setattr(remote_server, "QUICK_S", 0.5)
    limits = dataclasses.replace(serving.LIMITS, connect_s=1.0, request_s=2.0)
    with learner.engine(limits=limits) as hurried:
        server.send(signal.SIGSTOP)
        with pytest.raises(EngineLost, match=rf"{server.url}: not up within 1 s \(/weight_in"):
            ask(hurried, [prompt])
        server.send(signal.SIGCONT)


def check_devices(learner: Learner, caplog: pytest.LogCaptureFixture) -> None:
    """Another kind of device is said where its log-probabilities are taken for the learner's."""
    for device, warns in (("", False), ("cpu", False), ("TPU v5 lite", True)):
        kind = functools.partial(JaxServer, folder=learner.folder, device=device)
        learner.engine(server=kind).close()
        assert ("computes on cpu, the learner on TPU v5 lite" in caplog.text) == warns


def check_other_settings(learner: Learner) -> None:
    """A learner with other settings refuses the server before the first push."""
    keeping = functools.partial(JaxServer, folder=learner.folder, keeps_entropies=True)
    for changes, message in (
        ({"max_length": 97}, r"takes 96 tokens, .* are 97; start it with the learn"),
        ({"dtype": "bfloat16"}, "its dtype is 'float32', the learner needs 'bfloat"),
        ({"server": keeping}, r"entropies is False, .* make engine\.entropies of both"),
        ({"key": "wrong"}, f"refuses the key .*; set {KEY} to the server's"),
    ):
        with pytest.raises(InputError, match=message):
            learner.engine(**changes)


def test_tokens_are_those_of_this_process_through_a_kill_a_hang_and_a_stranger(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One server, because each takes seconds to start."""
    config, params = load_hf(TINY)
    words = load_tokenizer(TINY)
    newer = shaken(params, 1)
    prompts = [words.encode_chat(f"you are in room {number} .") for number in range(16)]
    with in_process(config, params, words) as here:
        expected = ask_both_versions(here, newer, prompts)
    with serving.server(tmp_path) as server:
        learner = Learner(config, params, words, tmp_path / "weights", server.url)
        with learner.engine() as engine:
            responses = ask_both_versions(engine, newer, prompts)
            check_equal(responses, expected)
            check_kill(server, engine, prompts, expected[1])
            stranger = dataclasses.replace(learner, folder=tmp_path / "other")
            check_stranger(stranger, engine, prompts[0], expected[1][0])
            check_push_in_flight(dataclasses.replace(learner, folder=tmp_path / "in flight"))
            check_hang(server, learner, prompts[0], monkeypatch)
            check_devices(learner, caplog)
            check_other_settings(learner)
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
