"""One engine server over HTTP: pushes that are cut, damaged or wrong, and requests that are."""

import asyncio
import base64
import contextlib
import dataclasses
import json
import pathlib
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("aiohttp")
import aiohttp

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.engines.jax_server import client
from gigpo_jax.engines.jax_server import server as server_module
from gigpo_jax.engines.jax_server.client import JaxServer, jax_request
from gigpo_jax.engines.jax_server.server import (
    MAX_BODY_BYTES,
    EngineServer,
    ServerSettings,
    largest_body,
)
from gigpo_jax.engines.remote.probe import make_probe_scorer
from gigpo_jax.engines.remote.protocol import LOADING, Limits, ServerFault, read_generated
from gigpo_jax.engines.remote.server import PushedWeights
from gigpo_jax.engines.remote.weight_store import WeightStore
from gigpo_jax.models import decoder
from gigpo_jax.models.vision.vision_config import QWEN3_VL
from tests.engines.endpoint import serving
from tests.processes import patience, wait_until

KEY = "open sesame"
LIMITS = Limits(start_s=30, connect_s=30, request_s=30, push_s=30, restarts=0)
PROBE = (1, 2, 3)
CONFIG, PARAMS = serving.small_policy()
PROMPT = np.array([1, 2, 3, 4])


class Side:
    """A server, and the learner's folder of weights.

    Attributes:
      url: Address of the server.
      folder: Folder in which the server keeps what is sent.
      said: Its messages.
    """

    def __init__(self, url: str, folder: pathlib.Path, store: WeightStore, said: list[str]):
        self.url = url
        self.folder = folder
        self.store = store
        self.said = said
        self.version = 0

    def write(self, params: decoder.Params = PARAMS, **changes: Any) -> PushedWeights:
        """Writes weights for the next push."""
        self.version += 1
        name = f"w{self.version}.safetensors"
        checksum = self.store.write_weights(CONFIG, params, dtype=np.float32, name=name)
        scores = np.asarray(make_probe_scorer(CONFIG, params, "float32")(params, np.array(PROBE)))
        fields = {"label": f"r:{self.version}", "name": name, "checksum": checksum}
        fields |= {"probe": PROBE, "expected": scores, "tolerance": 1e-3}
        return PushedWeights(**fields | changes)

    def talk(self, work: Callable[[JaxServer], Awaitable[Any]]) -> Any:
        async def scenario() -> Any:
            headers = {"Authorization": f"Bearer {KEY}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                server = JaxServer(self.url, session, LIMITS, None, folder=self.store.folder)
                return await asyncio.wait_for(work(server), 60)

        return asyncio.run(scenario())

    def push(self, weights: PushedWeights) -> dict[str, float]:
        return self.talk(lambda server: server.push(weights))

    def label(self) -> str:
        return self.talk(lambda server: server.weights_label())

    def generate(self, **changes: Any) -> Any:
        body = jax_request(PROMPT, SamplingParams(max_tokens=8, key=(2**32 - 1, 7)), ())
        return self.talk(lambda server: server.generate(body | changes))

    def call(
        self, method: str, path: str, data: bytes = b"", key: str = KEY
    ) -> tuple[int, dict[str, Any]]:
        async def scenario() -> tuple[int, dict[str, Any]]:
            headers = {"Authorization": f"Bearer {key}"}
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.request(method, self.url + path, data=data) as answer,
            ):
                return answer.status, await answer.json()

        return asyncio.run(scenario())


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("server").resolve()
    settings = ServerSettings("127.0.0.1", 0, KEY, folder, False, {}, "float32")
    said: list[str] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with (
        serving.make_engine(decode_steps=1, keeps_entropies=True) as engine,
        contextlib.closing(WeightStore(tmp_path_factory.mktemp("learner"))) as store,
    ):
        server = EngineServer(engine, PARAMS, settings, said.append)
        task = asyncio.run_coroutine_threadsafe(server.serve(), loop)
        assert wait_until(lambda: bool(said) or task.done(), 30)
        assert not task.done()
        yield Side(said[0].removeprefix("serving on "), folder, store, said)
        task.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


def shaken(seed: int) -> decoder.Params:
    """Other parameters."""
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(PARAMS))))
    return jax.tree.map(lambda x: x + 0.5 * jax.random.normal(next(keys), x.shape), PARAMS)


def test_a_push_replaces_the_weights_and_names_their_responses(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PIECE_BYTES", 4096)  # several pieces a push
    report = side.push(side.write(shaken(1)))
    assert report["bytes"] == sum(4 * leaf.size for leaf in jax.tree.leaves(PARAMS))
    assert report["probe_difference"] < 1e-5
    assert side.label() == f"r:{side.version}"
    response = read_generated(side.generate(), "r", 8)
    assert response.version == side.version
    with serving.make_engine((CONFIG, shaken(1)), keeps_entropies=True) as engine:
        params = SamplingParams(max_tokens=8, key=(2**32 - 1, 7))
        here = asyncio.run(engine.generate(PROMPT, params))
    np.testing.assert_array_equal(response.tokens, here.tokens)
    np.testing.assert_array_equal(response.entropies, here.entropies)
    np.testing.assert_array_equal(response.logprobs, here.logprobs)
    assert list(side.folder.iterdir()) == []  # host memory is free again
    assert side.said[-1].startswith(f"weights r:{side.version}: 0.0 MB in ")


def test_a_push_that_is_cut_leaves_the_old_weights_and_the_next_one_works(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.push(side.write())
    version = side.version
    monkeypatch.setattr(client, "PIECE_BYTES", 4096)
    cut = side.write(shaken(2))
    path, offset, piece = next(iter(client.read_pieces(side.store.folder, cut.name)))
    target = f"/weights/{path}?offset={offset}&crc32={zlib.crc32(piece):08x}"
    assert side.call("PUT", target, piece)[0] == 200
    again = target.replace("offset=0", "offset=8")
    status, answer = side.call("PUT", again, piece)
    assert (status, "4096 bytes are there, not 8" in answer["error"]["message"]) == (409, True)
    # The learner died here; what it sent is not loaded even if somebody asks for it.
    assert read_generated(side.generate(), "r", 8).version == version
    body = {"label": "r:99", "name": cut.name, "checksum": cut.checksum, "probe": PROBE}
    body |= {"expected": cut.expected.tolist(), "tolerance": 1e-3}
    status, answer = side.call("POST", "/load", json.dumps(body).encode())
    assert status == 409
    assert "broken or cut short" in answer["error"]["message"]
    assert side.label() == f"r:{version}"
    assert read_generated(side.generate(), "r", 8).version == version
    side.push(side.write(shaken(3)))
    assert list(side.folder.iterdir()) == []
    assert read_generated(side.generate(), "r", 8).version == side.version


def test_all_pieces_of_a_push_have_one_limit(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each arrives at once, and all together take longer."""
    monkeypatch.setattr(client, "PIECE_BYTES", 16)
    weights = side.write()

    async def push(server: JaxServer) -> None:
        server._limits = dataclasses.replace(LIMITS, push_s=0.2)
        await server.push(weights)

    with pytest.raises(ServerFault, match=rf"{weights.name}: not sent within 0.2 s"):
        side.talk(push)
    monkeypatch.undo()
    side.push(side.write())


def test_pieces_wait_for_a_load_whose_client_gave_up(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try of the push must not overwrite the file that is being read."""
    side.push(side.write())
    weights = side.write(shaken(6))
    loads = threading.Event()
    goes_on = threading.Event()
    load_file = server_module.load_file

    def load_slowly(*args: Any, **options: Any) -> decoder.Params:
        loads.set()
        assert goes_on.wait(30)
        return load_file(*args, **options)

    async def push_twice(server: JaxServer) -> None:
        first = asyncio.create_task(server.push(weights))
        assert await asyncio.to_thread(loads.wait, 30)
        first.cancel()
        (sent,) = side.folder.iterdir()
        content = sent.read_bytes()
        path, offset, piece = next(iter(client.read_pieces(side.store.folder, weights.name)))
        target = f"/weights/{path}?offset={offset}&crc32={zlib.crc32(piece[:8]):08x}"
        second = asyncio.create_task(server.call("PUT", target, data=piece[:8]))
        await asyncio.sleep(0.2)
        assert not second.done()
        assert sent.read_bytes() == content
        goes_on.set()
        await second

    monkeypatch.setattr(server_module, "load_file", load_slowly)
    side.talk(push_twice)
    assert side.label() == weights.label
    side.push(side.write())
    assert list(side.folder.iterdir()) == []


def test_weights_of_another_shape_or_that_compute_something_else_are_refused(side: Side) -> None:
    side.push(side.write())
    other = dataclasses.replace(CONFIG, intermediate_size=48)
    wide = decoder.init_params(other, jax.random.key(0))
    name = "wide.safetensors"
    checksum = side.store.write_weights(other, wide, dtype=np.float32, name=name)
    scores = np.zeros(2, np.float32)
    with pytest.raises(ServerFault, match=r"mlp\..*has shape \[16, 48\], .* for \[16, 32\]"):
        side.push(PushedWeights("r:1", name, checksum, PROBE, scores, 1.0))
    for error in (np.nan, 0.002):  # the tolerance is 0.001
        weights = side.write(shaken(4))
        weights = dataclasses.replace(weights, expected=np.asarray(weights.expected) + error)
        with pytest.raises(ServerFault, match="other weights than the learner: the probe's"):
            side.push(weights)
    assert side.label() == LOADING
    with pytest.raises(ServerFault, match="status 503: no weights: the last push failed"):
        side.generate()
    damaged = side.write(shaken(5), checksum="c0ffee")
    with pytest.raises(ServerFault, match=r"checksum .*, the learner wrote c0ffee"):
        side.push(damaged)
    side.push(side.write())
    assert read_generated(side.generate(), "r", 8).version == side.version


@pytest.mark.parametrize(
    ("path", "data", "status", "says"),
    [
        ("x.safetensors?offset=0&crc32=0", b"abc", 409, "damaged"),
        ("x.safetensors?offset=7&crc32=352441c2", b"abc", 409, "0 bytes are there, not 7"),
        ("x.safetensors?offset=99999999999&crc32=352441c2", b"abc", 413, "has at most"),
        ("x.safetensors?offset=-1&crc32=352441c2", b"abc", 400, "numbers from 0"),
        ("x.safetensors?offset=a&crc32=0", b"abc", 400, "must be numbers"),
        ("x.safetensors?crc32=0", b"abc", 400, "must be numbers"),
        ("..%2Fx?offset=0&crc32=352441c2", b"abc", 400, "no place for weights"),
        ("a/b/c?offset=0&crc32=352441c2", b"abc", 400, "no place for weights"),
        ("a%00b?offset=0&crc32=352441c2", b"abc", 400, "no zero bytes"),
        ("x?offset=0&crc32=0", b" " * (MAX_BODY_BYTES + 1), 413, ""),
    ],
)
def test_pieces_that_do_not_fit_are_refused_with_one_line(
    side: Side, path: str, data: bytes, status: int, says: str
) -> None:
    given, answer = side.call("PUT", f"/weights/{path}", data)
    assert (given, says in answer["error"]["message"]) == (status, True), answer
    assert "\n" not in answer["error"]["message"]
    assert not (side.folder.parent / "x").exists()


def test_broken_requests_are_refused_and_the_key_is_needed(side: Side) -> None:
    side.push(side.write())
    served = side.version
    good = jax_request(PROMPT, SamplingParams(max_tokens=8), ())
    sampling = good["sampling_params"]
    bad_bodies = [
        good | {"token_ids": []},
        good | {"token_ids": [1] * 200},
        good | {"token_ids": [2**40]},
        good | {"token_ids": [10**6]},
        good | {"token_ids": None},
        good | {"sampling_params": 3},
        good | {"sampling_params": sampling | {"max_tokens": 10**9}},
        good | {"sampling_params": sampling | {"max_tokens": float("inf")}},
        good | {"sampling_params": sampling | {"key": [1]}},
        good | {"sampling_params": sampling | {"key": [-1, 2**33]}},
        good | {"sampling_params": sampling | {"top_p": 2.0}},
        good | {"sampling_params": {}},
        [],
    ]
    path = "/inference/v1/generate"
    texts = [json.dumps(body).encode() for body in bad_bodies]
    for text in [*texts, b"{", b"[" * 100_000, b"\xff"]:
        status, answer = side.call("POST", path, text)
        assert status == 400, (text[:200], answer)
        assert "\n" not in answer["error"]["message"]
    assert side.call("POST", path, b" " * (MAX_BODY_BYTES + 1))[0] == 413
    assert side.call("POST", "/load", b"{}")[0] == 400
    weights = side.write()
    nameless = {"name": weights.name, "checksum": weights.checksum, "probe": PROBE}
    nameless |= {"expected": weights.expected.tolist(), "tolerance": 1e-3}
    for label in ({}, {"label": None}):
        side.talk(lambda server: server._send_files(side.store.folder, weights.name))
        status, answer = side.call("POST", "/load", json.dumps(nameless | label).encode())
        assert (status, "label" in answer["error"]["message"]) == (400, True)
    assert side.call("GET", "/nothing")[0] == 404
    for method, route in (("POST", path), ("PUT", "/weights/x"), ("POST", "/load")):
        assert side.call(method, route, key="wrong")[0] == 401
    assert side.call("GET", "/health", key="wrong") == (200, {"status": "ok", "running": 0})
    assert read_generated(side.generate(), "r", 8).version == served


def test_a_prompt_of_images_alone_fits_a_request() -> None:
    image = np.zeros((4 * 8000, QWEN3_VL.patch_values), np.uint8)
    body = jax_request(np.full(8000, 151_655), SamplingParams(), ())
    body["images"] = [{"grid": (160, 50), "patches": base64.b64encode(image.tobytes()).decode()}]
    size = len(json.dumps(body))
    assert MAX_BODY_BYTES < size <= largest_body(QWEN3_VL, 8000) < size + MAX_BODY_BYTES
    assert largest_body(None, 8000) == MAX_BODY_BYTES


def test_tokens_of_several_pushes_come_back_with_their_versions() -> None:
    server: Any = object.__new__(EngineServer)
    server._labels = ["", "r:3", "r:5", "r:8"]
    logprobs = np.float32([-1.0, -2.0, -3.0, -4.0])
    versions = np.array([1, 3, 3, 3], np.int32)
    completion = Completion(np.array([7, 8, 9, 4]), logprobs, "stop", 1, versions=versions)
    answer = json.loads(json.dumps(server._answer(completion)))
    response = read_generated(answer, "r", 8, inflight=True)
    assert response.versions is not None
    assert (response.versions.tolist(), response.version) == ([3, 8, 8, 8], 3)
    assert response.tokens.tolist() == [7, 8, 9, 4]
    np.testing.assert_array_equal(response.logprobs, logprobs)


def test_an_ended_session_is_told_once_with_the_next_request(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.push(side.write())
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(JaxEngine, "end_session", lambda _, session: ended.append(session))
    body = jax_request(PROMPT, SamplingParams(max_tokens=8), ())
    weights = side.write()

    async def end_two(server: JaxServer) -> None:
        server.end_session((2**32 - 1, 7))
        server.end_session((1, 2))
        assert ended == []
        await server.generate(body)
        await server.generate(body)
        # New weights leave nothing of a session.
        server.end_session((3, 4))
        await server.push(weights)
        await server.generate(body)

    side.talk(end_two)
    assert ended == [(2**32 - 1, 7), (1, 2)]
    status, answer = side.call(
        "POST", "/inference/v1/generate", json.dumps(body | {"ended_sessions": [[1]]}).encode()
    )
    assert (status, "ended_sessions" in answer["error"]["message"]) == (400, True)


def test_a_client_that_goes_away_frees_its_slot(side: Side) -> None:
    side.push(side.write())
    body = jax_request(PROMPT, SamplingParams(max_tokens=8), ())

    async def leave(server: JaxServer) -> None:
        requests = [asyncio.create_task(server.generate(body)) for _ in range(200)]
        await asyncio.sleep(0.02)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        until = time.monotonic() + patience(30)
        while (await server.call("GET", "/health"))["running"]:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)

    side.talk(leave)
    assert read_generated(side.generate(), "r", 8).version == side.version
