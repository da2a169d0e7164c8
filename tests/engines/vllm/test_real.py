"""A real vLLM server: the same numbers as the in-process engine, before and after pushes, and
honest about versions.
"""

import asyncio
import json
import pathlib
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest

from configs.quickstart import get_config
from gigpo_jax.config import resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import EngineLost, SamplingParams
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.engines.vllm.launch import ServerProcess
from gigpo_jax.engines.vllm.server import RELEASES
from gigpo_jax.models import decoder
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.models.text.tokenizer import Tokenizer, load_tokenizer
from gigpo_jax.modes import evaluate
from gigpo_jax.rollout.read_record import read_rollouts
from tests.engines.vllm import serving
from tests.engines.vllm.serving import KEY, TINY, Proxy, ask, learner_logprobs, shaken

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("compiled_once")]

STOP = ("</action>",)
LONG = 1024  # tokens of a prompt of an agent and its response
IMPATIENT = replace(
    serving.LIMITS, connect_s=2.0, restarts=0
)  # with servers that will not come back


@dataclass(frozen=True)
class Served:
    """A model and the server that was started from its folder."""

    config: decoder.DecoderConfig
    params: decoder.Params
    process: ServerProcess

    @property
    def url(self) -> str:
        return self.process.url


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(TINY)


@pytest.fixture(scope="module")
def weights_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def servers(
    tokenizer: Tokenizer, weights_dir: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    """One with a tied head, one with an untied one, and a second tied one, with long prompts, to be
    killed; started together."""
    folder = tmp_path_factory.mktemp("served")
    config, params = load_hf(TINY)
    untied = replace(config, tie_word_embeddings=False)
    both = {
        "tied": (config, params),
        "untied": (untied, params | {"head": shaken(params["embed"], 3)}),
    }
    save_hf(folder / "untied", untied, both["untied"][1], tokenizer=tokenizer)
    folders = {"tied": TINY, "untied": folder / "untied", "spare": TINY}
    started = {
        name: serving.start(
            model, folder / "logs", weights_dir, **({"max_length": LONG} if name == "spare" else {})
        )
        for name, model in folders.items()
    }
    try:
        for process in started.values():
            serving.wait_up(process)
        yield {
            name: Served(*both.get(name, both["tied"]), process)
            for name, process in started.items()
        }
    finally:
        for process in started.values():
            process.stop()


@pytest.fixture
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    places = ("desk 1", "drawer 1", "shelf 2", "bed 1", "fridge 1", "table 3")
    return [
        tokenizer.encode_chat(f"you are in the middle of a room. you see a {place}.")
        for place in places
    ] * 2


def call(url: str, path: str, body: Any = None, key: str = KEY) -> Any:
    """A request of the test's own."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url + path, data, headers), timeout=serving.START_S
    ) as answer:
        return json.loads(answer.read() or b"null")


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_log_probabilities_are_the_learners_before_and_after_pushes(
    servers: dict[str, Served],
    head: str,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
) -> None:
    """Greedy responses equal the in-process engine's, token for token.

    A server gives the responses of its first weights again after other weights were pushed.
    """
    served = servers[head]
    fresh = raw_greedy(served.url, prompts)
    with (
        serving.engine(
            served.config, served.params, tokenizer, urls=(served.url,), weights_dir=weights_dir
        ) as vllm,
        serving.in_process(served.config, served.params, tokenizer) as ours,
    ):
        assert 0 < vllm.last_push["bytes"] == 4 * decoder.param_count(served.config)
        for version, params in [
            (0, served.params),
            (1, shaken(served.params, 1)),
            (2, served.params),
        ]:
            if version:
                vllm.update_weights(params, version)
                ours.update_weights(params, version)
            assert vllm.last_push["probe_difference"] < 1e-4
            for theirs, here in zip(
                ask(vllm, prompts, temperature=0.0), ask(ours, prompts, temperature=0.0)
            ):
                np.testing.assert_array_equal(theirs.tokens, here.tokens)
                np.testing.assert_allclose(theirs.logprobs, here.logprobs, atol=1e-4)
                assert theirs.version == version
            if version != 1:
                for theirs, (tokens, logprobs) in zip(ask(vllm, prompts, temperature=0.0), fresh):
                    assert theirs.tokens.tolist() == tokens
                    np.testing.assert_allclose(theirs.logprobs, logprobs, atol=1e-4)
            for temperature in (1.0, 0.6):
                for prompt, response in zip(prompts, ask(vllm, prompts, temperature=temperature)):
                    expected = learner_logprobs(
                        served.config, params, prompt, response.tokens, temperature
                    )
                    np.testing.assert_allclose(response.logprobs, expected, atol=1e-4)


def count_cached_tokens(url: str) -> np.ndarray:
    """The server's counters: prompt tokens that its prefix cache had, and all prompt tokens."""
    headers = {"Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(
        urllib.request.Request(url + "/metrics", headers=headers), timeout=serving.START_S
    ) as answer:
        lines = answer.read().decode().splitlines()
    counters = [
        [
            float(line.split()[-1])
            for line in lines
            if line.startswith(f"vllm:prefix_cache_{name}_total{{")
        ]
        for name in ("hits", "queries")
    ]
    return np.sum(counters, axis=1)


def test_the_next_step_of_a_conversation_reads_its_beginning_from_the_prefix_cache(
    servers: dict[str, Served], tokenizer: Tokenizer, weights_dir: pathlib.Path
) -> None:
    """Blocks of the CPU build have 128 tokens: all full ones of the first prompt are read again, and
    none after a push.
    """
    served = servers["spare"]
    first = tokenizer.encode_chat("you see a desk 1. " * 80)
    full_blocks = len(first) // 128 * 128
    with serving.engine(
        served.config,
        served.params,
        tokenizer,
        urls=(served.url,),
        weights_dir=weights_dir,
        max_length=LONG,
    ) as vllm:
        (response,) = ask(vllm, [first])
        between = encode_continuation(tokenizer, "you see a shelf 2.", response.tokens.tolist())
        second = [*first, *response.tokens.tolist(), *between]
        other = shaken(served.params, 9)
        for params, version, hits in [(served.params, 0, full_blocks), (other, 1, 0)]:
            if version:
                vllm.update_weights(params, version)
            before = count_cached_tokens(served.url)
            (answer,) = ask(vllm, [second])
            found = count_cached_tokens(served.url) - before
            assert found.tolist() == [hits, len(second)]
            expected = learner_logprobs(served.config, params, second, answer.tokens, 1.0)
            np.testing.assert_allclose(answer.logprobs, expected, atol=1e-4)
        assert full_blocks > 0.8 * len(second)
        vllm.update_weights(served.params, 2)


def raw_greedy(url: str, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """What a server answers to whoever asks, without this client."""
    sampling = {"temperature": 0.0, "max_tokens": 16, "logprobs": 0, "ignore_eos": True}
    out = []
    for prompt in prompts:
        answer = call(
            url, "/inference/v1/generate", {"token_ids": prompt, "sampling_params": sampling}
        )
        (choice,) = answer["choices"]
        out.append(
            (choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]])
        )
    return out


def test_responses_end_where_the_other_engine_ends_them(
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
) -> None:
    served = servers["tied"]
    ends: dict[str, Any] = {"stop_token_ids": tokenizer.stop_token_ids, "temperature": 0.0}
    with (
        serving.engine(
            served.config, served.params, tokenizer, urls=(served.url,), weights_dir=weights_dir
        ) as vllm,
        serving.in_process(served.config, served.params, tokenizer) as ours,
    ):
        for stop in (STOP, (), ("to",), ("o t",)):
            theirs, here = (
                ask(engine, prompts, stop_strings=stop, **ends) for engine in (vllm, ours)
            )
            for one, other in zip(theirs, here):
                np.testing.assert_array_equal(one.tokens, other.tokens, err_msg=str(stop))
                assert one.finish_reason == other.finish_reason
        assert all(
            response.finish_reason == "stop"
            for response in ask(vllm, prompts, stop_strings=STOP, **ends)
        )
        short = ask(vllm, prompts, max_tokens=2)
        assert {(response.finish_reason, response.tokens.size) for response in short} == {
            ("length", 2)
        }
        with pytest.raises(InputError, match="takes 1 to 80"):
            ask(vllm, [[5] * 81])
        with pytest.raises(InputError, match="ids 0 to 272"):
            ask(vllm, [[5, 273]])


def test_a_request_with_the_same_key_gets_the_same_response_and_another_key_another(
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
) -> None:
    served = servers["tied"]
    flat = jax.tree.map(
        lambda x: x * 0.3, served.params
    )  # near uniform: two keys hardly agree on 16 tokens

    async def one(engine: RemoteEngine, key: tuple[int, int]) -> list[int]:
        return (
            await engine.generate(prompts[0], SamplingParams(max_tokens=16, key=key))
        ).tokens.tolist()

    with serving.engine(
        served.config, flat, tokenizer, urls=(served.url,), weights_dir=weights_dir
    ) as vllm:
        again = [asyncio.run(one(vllm, (1, 2))) for _ in range(2)]
        assert again[0] == again[1]
        assert asyncio.run(one(vllm, (1, 3))) != again[0]


def test_sessions_stay_with_a_server_and_new_ones_go_to_the_least_loaded(
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
) -> None:
    served = servers["tied"]
    urls = (servers["tied"].url, servers["spare"].url)
    with serving.engine(
        served.config, served.params, tokenizer, urls=urls, weights_dir=weights_dir
    ) as vllm:
        ask(vllm, prompts)
        homes = vllm._pool._session_servers
        assert sorted(Counter(server.url for server in homes.values()).values()) == [6, 6]
        before = dict(homes)
        ask(vllm, prompts)  # the same sessions again
        assert homes == before


def test_weights_that_a_server_lost_are_pushed_again_and_nothing_sampled_meanwhile_counts(
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
) -> None:
    """Somebody else relabels the server's weights, as a restart would; or another run takes the
    server over. Before, a learner was killed while the server paused for it."""
    served = servers["tied"]
    call(served.url, "/pause?mode=wait", {})
    with serving.engine(
        served.config, served.params, tokenizer, urls=(served.url,), weights_dir=weights_dir
    ) as vllm:
        vllm.update_weights(shaken(served.params, 2), 5)
        for label in ("default", "ffffffff:5", f"{vllm._run}:4"):
            call(served.url, "/update_weight_version", {"new_version": label})
            responses = ask(vllm, prompts)
            assert {response.version for response in responses} == {5}
            assert vllm.retries > 0
            assert call(served.url, "/weight_info")["weight_version"] == f"{vllm._run}:5"


def test_a_push_that_did_not_arrive_is_noticed_by_the_probe(
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
) -> None:
    """The learner's weights and the written ones differ: what a stale head or cache on the server
    would look like.
    """
    served = servers["tied"]
    said: list[str] = []
    with serving.engine(
        served.config,
        served.params,
        tokenizer,
        urls=(served.url,),
        weights_dir=weights_dir,
        said=said,
    ) as vllm:
        honest = vllm._score_probe
        vllm._score_probe = lambda params, probe: honest(shaken(params, 4), probe)
        with pytest.raises(EngineLost, match=r"probe's log-probabilities differ by"):
            vllm.update_weights(served.params, 1)
        with pytest.raises(EngineLost):
            ask(vllm, prompts[:1])
        assert call(served.url, "/weight_info")["weight_version"] == "loading"
    assert any("dropped, 0 servers left" in line for line in said)


@pytest.fixture(scope="module")
def proxied(
    servers: dict[str, Served], tokenizer: Tokenizer, weights_dir: pathlib.Path
) -> Iterator[tuple[Proxy, RemoteEngine]]:
    """A proxy before a server, and an engine that knows only the proxy and is not patient."""
    served = servers["spare"]
    proxy = Proxy(served.url)
    with serving.engine(
        served.config,
        served.params,
        tokenizer,
        urls=(proxy.url,),
        weights_dir=weights_dir,
        limits=replace(serving.LIMITS, request_s=10.0),
    ) as vllm:
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
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
) -> None:
    proxy = Proxy(servers["tied"].url)
    served = servers["tied"]
    with serving.engine(
        served.config, served.params, tokenizer, urls=(proxy.url,), weights_dir=weights_dir
    ) as vllm:
        proxy.break_next(["nonsense"], 10_000)
        with pytest.raises(RuntimeError, match="unexpected answer"):
            ask(vllm, prompts[:2])
    proxy.close()


def test_development_endpoints_need_the_key(servers: dict[str, Served]) -> None:
    url = servers["tied"].url
    for path in (
        "/pause",
        "/collective_rpc",
        "/update_weight_version",
        "/v1/completions",
        "/inference/v1/generate",
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            call(url, path, {}, key="guessed")
        assert refused.value.code == 401, path
    assert call(url, "/version", key="guessed")["version"].startswith(RELEASES)


def test_the_key_is_in_no_log_and_on_no_command_line(servers: dict[str, Served]) -> None:
    process = servers["tied"].process
    assert KEY not in process.log.read_text(errors="replace")
    assert not any(KEY in arguments for arguments in serving.family(process).values())


def test_what_cannot_be_used_is_refused_with_the_fix(
    servers: dict[str, Served], tokenizer: Tokenizer, weights_dir: pathlib.Path
) -> None:
    served = servers["tied"]

    def connect(url: str, **changes: Any) -> str:
        with pytest.raises(InputError) as error:
            serving.engine(
                served.config,
                served.params,
                tokenizer,
                urls=(url,),
                weights_dir=weights_dir,
                **changes,
            )
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "its tie_word_embeddings is False, the learner needs True" in connect(
        servers["untied"].url
    )
    assert "set VLLM_API_KEY" in connect(served.url, key="guessed")
    assert "--max-model-len 97" in connect(served.url, max_length=97)
    assert "the learner needs 'bfloat16'" in connect(served.url, dtype="bfloat16")
    assert "the learner needs 'other'" in connect(served.url, tokenizer="other")
    assert "start it or correct config.engine.urls" in connect(
        "http://127.0.0.1:9", limits=IMPATIENT
    )


@pytest.mark.parametrize("agent", ["react", "reflexion"])
def test_agents_play_as_in_this_process(
    servers: dict[str, Served],
    agent: str,
    weights_dir: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    config = get_config().unlock()
    config.agent, config.eval.tasks, config.eval.examples, config.env.workers = agent, 2, 0, 1
    config.sampling.max_prompt_tokens, config.batch.row_length = LONG - 16, LONG
    config.engine.prefill_buckets, config.engine.prefill_rows, config.engine.slots = (
        (LONG - 16,),
        (1,),
        2,
    )
    config.engine.urls, config.engine.weights_dir = servers["spare"].url, str(weights_dir)
    played = {}
    for name in ("vllm", "jax"):
        config.engine.name = name
        if name == "jax":
            config.engine.urls = config.engine.weights_dir = ""
        assert evaluate.run(resolve(config, trains=False), tmp_path / name, "") == 0
        played[name] = read_rollouts(
            tmp_path / name / f"eval_tiny_unseen_{agent}_greedy.jsonl.gz"
        ).episodes
    theirs, ours = (
        [
            (e.member, e.won, e.reflection, [(s.prompt, s.response) for s in e.steps])
            for e in played[name]
        ]
        for name in ("vllm", "jax")
    )
    assert theirs == ours
    failed = [episode for episode in played["vllm"] if not episode.won]
    assert failed
    assert any(episode.reflection for episode in failed) == (agent == "reflexion")
    assert all(
        'a line that begins with "Thought 1:"' in episode.steps[0].prompt
        for episode in played["vllm"]
    )


def test_damaged_bytes_are_not_loaded(
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A byte changes after the file was written; the model stays as it was."""
    served = servers["tied"]
    other_files = set(weights_dir.iterdir())
    with serving.engine(
        served.config, served.params, tokenizer, urls=(served.url,), weights_dir=weights_dir
    ) as vllm:
        before = raw_greedy(served.url, prompts[:2])
        write = vllm._store.write_weights

        def write_damaged(*args: Any, name: str, **settings: Any) -> str:
            checksum = write(*args, name=name, **settings)
            with (weights_dir / name).open("r+b") as file:
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
    assert set(weights_dir.iterdir()) == other_files


def test_a_server_that_is_killed_in_a_push_ends_the_run_and_no_file_stays(
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    weights_dir: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last test of the untied server."""
    served = servers["untied"]
    other_files = set(weights_dir.iterdir())
    with serving.engine(
        served.config,
        served.params,
        tokenizer,
        urls=(served.url,),
        weights_dir=weights_dir,
        limits=IMPATIENT,
    ) as vllm:
        (server,) = vllm._pool.servers
        load = server._load_weights

        async def kill_and_load(weights: Any) -> Any:
            serving.kill_hard(served.process)
            return await load(weights)

        monkeypatch.setattr(server, "_load_weights", kill_and_load)
        with pytest.raises(EngineLost, match=r"no server is left: http.*not up within 2 s"):
            vllm.update_weights(shaken(served.params, 5), 1)
    assert set(weights_dir.iterdir()) == other_files


def test_a_server_that_is_killed_is_dropped_while_another_is_left_and_the_last_ends_the_run(
    servers: dict[str, Served],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    weights_dir: pathlib.Path,
) -> None:
    """The last test of this file: nobody uses these two servers afterwards."""
    served = servers["tied"]
    urls = (servers["spare"].url, servers["tied"].url)
    said: list[str] = []
    how: dict[str, Any] = {
        "urls": urls,
        "weights_dir": weights_dir,
        "said": said,
        "limits": IMPATIENT,
    }
    with serving.engine(served.config, served.params, tokenizer, **how) as vllm:
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
