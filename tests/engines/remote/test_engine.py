"""What the learner's side makes of a response."""

import asyncio
import pathlib
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.remote.engine import TOLERANCE, RemoteEngine, RemoteSettings
from gigpo_jax.engines.remote.probe import make_probe_scorer
from gigpo_jax.engines.remote.protocol import Limits, ResponseDiscarded, generate_request
from gigpo_jax.engines.remote.server import PushedWeights, Server
from gigpo_jax.engines.remote.servers import ServerPool
from gigpo_jax.engines.remote.weight_store import WeightStore
from gigpo_jax.engines.stopping import StopStrings
from tests.engines.test_stopping import Pieces
from tests.models.shapes import SMALL, random_params

LIMITS = Limits(start_s=1, connect_s=1, request_s=1, push_s=1, restarts=0)
PROBE = tuple(range(9))


def test_a_response_that_is_cut_keeps_the_versions_of_its_tokens() -> None:
    engine: Any = object.__new__(RemoteEngine)
    engine._stops = StopStrings(Pieces("a", "</", "x>"))
    tokens = np.array([0, 1, 2, 0], np.int32)
    versions = np.array([6, 6, 7, 7], np.int32)
    response = Completion(tokens, -0.5 * np.ones(4, np.float32), "length", 6, versions)
    cut = engine._cut_at_stop(response, SamplingParams(max_tokens=9, stop_strings=("</x>",)))
    assert (cut.tokens.tolist(), cut.versions.tolist()) == ([0, 1, 2], [6, 6, 7])
    assert (len(cut.logprobs), cut.finish_reason, cut.version) == (3, "stop", 6)


class Discarding(Server):
    """A server none of whose responses count."""

    async def generate(self, body: dict[str, Any]) -> Any:
        del body
        raise ResponseDiscarded("weights failed their probe")


def test_a_server_whose_response_is_discarded_stays_ready() -> None:
    server = Discarding("http://127.0.0.1:1", SimpleNamespace(), LIMITS)  # type: ignore[arg-type]
    server.state = "ready"
    engine: Any = object.__new__(RemoteEngine)
    engine._version = 0
    engine.retries = 0

    async def ask() -> None:
        engine._pool = ServerPool([server], LIMITS, lambda _: None)
        await engine._generate_with_retries({}, SamplingParams(max_tokens=1), np.zeros(1))

    with pytest.raises(RuntimeError, match="weights failed their probe"):
        asyncio.run(ask())
    assert (server.state, server.failures, server.load) == ("ready", 0, 0)
    assert engine.retries > 1


class Answering(Server):
    """A server that draws one token."""

    version = 0

    async def generate(self, body: dict[str, Any]) -> Any:
        del body
        choice = {
            "token_ids": [3],
            "logprobs": {"content": [{"token_id": 3, "logprob": -0.5}]},
            "weight_versions": [{"start": 0, "end": 1, "version": f"run:{self.version}"}],
            "finish_reason": "length",
        }
        return {"choices": [choice]}


def test_a_response_ends_a_row_of_failures() -> None:
    server = Answering("http://127.0.0.1:1", SimpleNamespace(), LIMITS)  # type: ignore[arg-type]
    server.state, server.failures = "ready", 5
    engine: Any = object.__new__(RemoteEngine)
    engine._version, engine._run, engine._settings = 0, "run", SimpleNamespace(inflight=False)

    async def ask() -> Completion:
        engine._pool = ServerPool([server], LIMITS, lambda _: None)
        return await engine._generate_with_retries({}, SamplingParams(max_tokens=1), np.zeros(1))

    assert asyncio.run(ask()).tokens.tolist() == [3]
    assert (server.state, server.failures, server.load) == ("ready", 0, 0)


def test_a_response_of_weights_before_the_last_push_is_requested_again() -> None:
    servers = [Answering(f"http://127.0.0.1:{n}", SimpleNamespace(), LIMITS) for n in (1, 2)]  # type: ignore[arg-type]
    servers[1].version = 2
    engine: Any = object.__new__(RemoteEngine)
    engine._version, engine._run, engine._settings = 1, "run", SimpleNamespace(inflight=False)
    engine.retries = 0
    for server in servers:
        server.state = "ready"

    async def ask() -> Completion:
        engine._pool = ServerPool(list(servers), LIMITS, lambda _: None)
        return await engine._generate_with_retries({}, SamplingParams(max_tokens=1), np.zeros(1))

    # Newer weights are right as well: the push came while the request waited.
    assert asyncio.run(ask()).version == 2
    assert engine.retries == 1
    assert (servers[0].state, servers[1].state) != ("ready", "ready")


class Receiving(Server):
    """A server that keeps the log-probabilities of each push's probe."""

    expected: np.ndarray

    async def check_health(self) -> None:
        pass

    async def check(self, *_: Any, **__: Any) -> None:
        pass

    async def weights_label(self) -> str:
        return ""

    async def push(self, weights: PushedWeights) -> dict[str, float]:
        self.expected = await asyncio.to_thread(np.asarray, weights.expected)
        return {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "name", "scores_file"),
    [
        ("bfloat16", "gqa4_tied", True),
        ("bfloat16", "moe", False),
        ("float32", "gqa4_tied", False),
    ],
)
def test_on_cpus_the_probe_scores_what_was_written_in_bfloat16(
    dtype: str, name: str, scores_file: bool, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    config = SMALL[name]
    params, written = (random_params(config, seed) for seed in (0, 1))
    score = make_probe_scorer(config, params, dtype)
    settings = RemoteSettings(
        server=Receiving,
        make_request=generate_request,
        urls=("http://127.0.0.1:1",),
        processes=(),
        key="",
        dtype=dtype,
        max_length=16,
        tokenizer="",
        probe=PROBE,
        limits=LIMITS,
    )
    store = WeightStore(tmp_path)
    with RemoteEngine(config, params, settings=settings, store=store) as engine:
        (server,) = engine._pool.servers
        assert isinstance(server, Receiving)

        def difference(scored: Any) -> float:
            expected = score(jax.tree.map(lambda x: x.astype(dtype), scored), np.array(PROBE))
            return float(np.mean(np.abs(server.expected - np.asarray(expected))))

        assert difference(params) < TOLERANCE[dtype]
        write = store.write_weights
        monkeypatch.setattr(
            store, "write_weights", lambda config, _, **names: write(config, written, **names)
        )
        engine.update_weights(params, 1)
        assert difference(written if scores_file else params) < TOLERANCE[dtype]
        assert difference(params if scores_file else written) > TOLERANCE[dtype]
        assert engine.compile_count == 1
