"""Real vLLM servers that lose weights, answer wrongly or are killed, in this order."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gigpo_jax.engines.base import EngineLost, SamplingParams
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.engines.vllm.launch import ServerProcess
from tests.engines.vllm import serving
from tests.engines.vllm.serving import (
    IMPATIENT,
    Proxy,
    Served,
    ask,
    call,
    learner_logprobs,
    raw_greedy,
    shaken,
)

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("compiled_once")]


def test_weights_that_a_server_lost_are_pushed_again_and_nothing_sampled_meanwhile_counts(
    servers: dict[str, Served], prompts: list[list[int]]
) -> None:
    """Somebody else relabels the server's weights, as a restart would; or another run takes the
    server over. Before, a learner was killed while the server paused for it."""
    served = servers["tied"]
    call(served.url, "/pause?mode=wait", {})
    with served.engine() as vllm:
        vllm.update_weights(shaken(served.params, 2), 5)
        for label in ("default", "ffffffff:5", f"{vllm._run}:4"):
            call(served.url, "/update_weight_version", {"new_version": label})
            responses = ask(vllm, prompts)
            assert {response.version for response in responses} == {5}
            assert vllm.retries > 0
            assert call(served.url, "/weight_info")["weight_version"] == f"{vllm._run}:5"


def test_a_push_that_did_not_arrive_is_noticed_by_the_probe(
    servers: dict[str, Served], prompts: list[list[int]]
) -> None:
    """The learner's weights and the written ones differ: what a stale head or cache on the server
    would look like.
    """
    served = servers["tied"]
    said: list[str] = []
    with served.engine(said=said) as vllm:
        honest = vllm._score_probe
        vllm._score_probe = lambda params, probe: honest(shaken(params, 4), probe)
        with pytest.raises(EngineLost, match=r"probe's log-probabilities differ by"):
            vllm.update_weights(served.params, 1)
        with pytest.raises(EngineLost):
            ask(vllm, prompts[:1])
        assert call(served.url, "/weight_info")["weight_version"] == "loading"
    assert any("dropped, 0 servers left" in line for line in said)


@pytest.fixture(scope="module")
def proxied(servers: dict[str, Served]) -> Iterator[tuple[Proxy, RemoteEngine]]:
    """A proxy before a server, and an engine that knows only the proxy and is not patient."""
    served = servers["spare"]
    proxy = Proxy(served.url)
    with served.engine(urls=(proxy.url,), limits=replace(serving.LIMITS, request_s=10.0)) as vllm:
        yield proxy, vllm
    proxy.close()


@pytest.mark.parametrize("faults", ["refuse", "error", "nonsense", "empty", "cut", "half delay"])
def test_broken_answers_are_asked_for_again(
    proxied: tuple[Proxy, RemoteEngine], prompts: list[list[int]], faults: str
) -> None:
    proxy, vllm = proxied
    expected = ask(vllm, prompts[:6], temperature=0.0)
    before = vllm.retries
    proxy.break_next(faults.split(), 4)
    responses = ask(vllm, prompts[:6], temperature=0.0)
    assert proxy.seen == 4
    assert vllm.retries >= before + 4
    assert [response.tokens.tolist() for response in responses] == [
        response.tokens.tolist() for response in expected
    ]
    assert {response.version for response in responses} == {0}


def test_a_push_whose_answer_gets_lost_is_made_again(
    servers: dict[str, Served], proxied: tuple[Proxy, RemoteEngine], prompts: list[list[int]]
) -> None:
    served, (proxy, vllm) = servers["spare"], proxied
    other = shaken(served.params, 8)
    proxy.break_next(["cut", "nonsense"], 2, path=b"/collective_rpc")
    vllm.update_weights(other, 1)
    assert proxy.seen == 2
    for prompt, response in zip(prompts, ask(vllm, prompts)):
        expected = learner_logprobs(served.config, other, prompt, response.tokens, 1.0)
        np.testing.assert_allclose(response.logprobs, expected, atol=1e-4)
        assert response.version == 1
    vllm.update_weights(served.params, 0)


def test_a_server_that_always_breaks_ends_the_run_with_its_reason_not_a_hang(
    servers: dict[str, Served], prompts: list[list[int]]
) -> None:
    proxy = Proxy(servers["tied"].url)
    served = servers["tied"]
    with served.engine(urls=(proxy.url,)) as vllm:
        proxy.break_next(["nonsense"], 10_000)
        with pytest.raises(RuntimeError, match="unexpected answer"):
            ask(vllm, prompts[:2])
    proxy.close()


def test_damaged_bytes_are_not_loaded(
    servers: dict[str, Served], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte changes after the file was written; the model stays as it was."""
    served = servers["tied"]
    other_files = set(served.weights_dir.iterdir())
    with served.engine() as vllm:
        before = raw_greedy(served.url, prompts[:2])
        write = vllm._store.write_weights

        def write_damaged(*args: Any, name: str, **settings: Any) -> str:
            checksum = write(*args, name=name, **settings)
            with (served.weights_dir / name).open("r+b") as file:
                file.seek(-7, 2)
                byte = file.read(1)[0]
                file.seek(-7, 2)
                file.write(bytes([byte ^ 1]))
            return checksum

        monkeypatch.setattr(vllm._store, "write_weights", write_damaged)
        with pytest.raises(EngineLost, match=r"checksum .*, the learner wrote"):
            vllm.update_weights(shaken(served.params, 5), 1)
        assert call(served.url, "/weight_info")["weight_version"] == "loading"
        for (tokens, logprobs), (old_tokens, old_logprobs) in zip(
            raw_greedy(served.url, prompts[:2]), before
        ):
            assert tokens == old_tokens
            np.testing.assert_allclose(logprobs, old_logprobs, atol=1e-5)
    assert set(served.weights_dir.iterdir()) == other_files


def test_a_server_that_is_killed_in_a_push_ends_the_run_and_no_file_stays(
    servers: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of the untied server."""
    served = servers["untied"]
    other_files = set(served.weights_dir.iterdir())
    with served.engine(limits=IMPATIENT) as vllm:
        (server,) = vllm._pool.servers
        load = server._load_weights

        async def kill_and_load(weights: Any) -> Any:
            serving.kill_hard(served.process)
            return await load(weights)

        monkeypatch.setattr(server, "_load_weights", kill_and_load)
        with pytest.raises(EngineLost, match=r"no server is left: http.*not up within 2 s"):
            vllm.update_weights(shaken(served.params, 5), 1)
    assert set(served.weights_dir.iterdir()) == other_files


def test_a_server_that_is_killed_is_dropped_while_another_is_left_and_the_last_ends_the_run(
    servers: dict[str, Served], prompts: list[list[int]]
) -> None:
    """The last test of this file: nobody uses these two servers afterwards."""
    served = servers["tied"]
    urls = (servers["spare"].url, servers["tied"].url)
    said: list[str] = []
    with served.engine(urls=urls, said=said, limits=IMPATIENT) as vllm:
        vllm.update_weights(shaken(served.params, 6), 3)

        async def in_the_middle(victim: ServerProcess) -> list[Any]:
            settings = [
                SamplingParams(max_tokens=32, key=(8, i), session=(8, i % 16)) for i in range(96)
            ]
            asked = [
                asyncio.ensure_future(vllm.generate(prompts[i % 12], s))
                for i, s in enumerate(settings)
            ]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            serving.kill_hard(victim)
            return await asyncio.gather(*asked, return_exceptions=True)

        responses = asyncio.run(in_the_middle(servers["spare"].process))
        assert {response.version for response in responses} == {3}
        assert vllm.retries > 0
        vllm.update_weights(served.params, 4)
        assert any(f"{urls[0]}: dropped, 1 servers left" in line for line in said)
        assert {response.version for response in ask(vllm, prompts)} == {4}
        responses = asyncio.run(in_the_middle(servers["tied"].process))
        assert all(
            isinstance(response, EngineLost) or response.version == 4 for response in responses
        )
        assert any(isinstance(response, EngineLost) for response in responses)
