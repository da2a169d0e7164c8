"""What the learner's side makes of a response."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.engines.remote.protocol import Limits, ResponseDiscarded
from gigpo_jax.engines.remote.server import Server
from gigpo_jax.engines.remote.servers import ServerPool
from gigpo_jax.engines.stopping import StopStrings
from tests.engines.test_stopping import Pieces


def test_a_response_that_is_cut_keeps_the_versions_of_its_tokens() -> None:
    engine: Any = object.__new__(RemoteEngine)
    engine._stops = StopStrings(Pieces("a", "</", "x>"), 3)
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
    limits = Limits(start_s=1, connect_s=1, request_s=1, push_s=1, restarts=0)
    server = Discarding("http://127.0.0.1:1", SimpleNamespace(), limits)  # type: ignore[arg-type]
    server.state = "ready"
    engine: Any = object.__new__(RemoteEngine)
    engine._version = 0
    engine.retries = 0

    async def ask() -> None:
        engine._pool = ServerPool([server], limits, lambda _: None)
        await engine._generate_with_retries({}, SamplingParams(max_tokens=1), np.zeros(1))

    with pytest.raises(RuntimeError, match="weights failed their probe"):
        asyncio.run(ask())
    assert (server.state, server.failures, server.load) == ("ready", 0, 0)
    assert engine.retries > 1
