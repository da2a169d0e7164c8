"""A real vLLM server: the same numbers as the in-process engine, before and after pushes, and
honest about versions.
"""

import asyncio
import pathlib
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

from configs.quickstart import get_config
from gigpo_jax.config import resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.engines.vllm.server import RELEASES
from gigpo_jax.models import decoder
from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.modes import evaluate
from gigpo_jax.rollout.read_record import read_rollouts
from tests.engines.vllm import serving
from tests.engines.vllm.serving import (
    IMPATIENT,
    KEY,
    LONG,
    Served,
    ask,
    call,
    fetch,
    learner_logprobs,
    raw_greedy,
    shaken,
)

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("compiled_once")]

STOP = ("</action>",)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_log_probabilities_are_the_learners_before_and_after_pushes(
    servers: dict[str, Served], head: str, prompts: list[list[int]]
) -> None:
    """Greedy responses equal the in-process engine's, token for token.

    A server gives the responses of its first weights again after other weights were pushed.
    """
    served = servers[head]
    fresh = raw_greedy(served.url, prompts)
    with served.engine() as vllm, served.in_process() as ours:
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
    lines = fetch(url, "/metrics").decode().splitlines()
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
    servers: dict[str, Served],
) -> None:
    """Blocks of the CPU build have 128 tokens: all full ones of the first prompt are read again, and
    none after a push.
    """
    served = servers["spare"]
    first = served.words.encode_chat("you see a desk 1. " * 80)
    full_blocks = len(first) // 128 * 128
    with served.engine(max_length=LONG) as vllm:
        (response,) = ask(vllm, [first])
        between = encode_continuation(served.words, "you see a shelf 2.", response.tokens.tolist())
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


def test_responses_end_where_the_other_engine_ends_them(
    servers: dict[str, Served], prompts: list[list[int]]
) -> None:
    served = servers["tied"]
    ends: dict[str, Any] = {"stop_token_ids": served.words.stop_token_ids, "temperature": 0.0}
    with served.engine() as vllm, served.in_process() as ours:
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
    servers: dict[str, Served], prompts: list[list[int]]
) -> None:
    served = servers["tied"]
    flat = jax.tree.map(
        lambda x: x * 0.3, served.params
    )  # near uniform: two keys hardly agree on 16 tokens

    async def one(engine: RemoteEngine, key: tuple[int, int]) -> list[int]:
        return (
            await engine.generate(prompts[0], SamplingParams(max_tokens=16, key=key))
        ).tokens.tolist()

    with served.engine(flat) as vllm:
        again = [asyncio.run(one(vllm, (1, 2))) for _ in range(2)]
        assert again[0] == again[1]
        assert asyncio.run(one(vllm, (1, 3))) != again[0]


def test_sessions_stay_with_a_server_and_new_ones_go_to_the_least_loaded(
    servers: dict[str, Served], prompts: list[list[int]]
) -> None:
    served = servers["tied"]
    urls = (servers["tied"].url, servers["spare"].url)
    with served.engine(urls=urls) as vllm:
        ask(vllm, prompts)
        homes = vllm._pool._session_servers
        assert sorted(Counter(server.url for server in homes.values()).values()) == [6, 6]
        before = dict(homes)
        ask(vllm, prompts)  # the same sessions again
        assert homes == before


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


def test_what_cannot_be_used_is_refused_with_the_fix(servers: dict[str, Served]) -> None:
    served = servers["tied"]

    def connect(url: str, **changes: Any) -> str:
        with pytest.raises(InputError) as error:
            served.engine(urls=(url,), **changes)
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
    servers: dict[str, Served], agent: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = servers["spare"]
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    config = get_config().unlock()
    config.agent, config.eval.tasks, config.eval.examples, config.env.workers = agent, 2, 0, 1
    config.sampling.max_prompt_tokens, config.batch.row_length = LONG - 16, LONG
    config.engine.prefill_buckets, config.engine.prefill_rows, config.engine.slots = (
        (LONG - 16,),
        (1,),
        2,
    )
    config.engine.urls, config.engine.weights_dir = served.url, str(served.weights_dir)
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
            (e.member, e.won, e.notes, [(s.prompt, s.response) for s in e.steps])
            for e in played[name]
        ]
        for name in ("vllm", "jax")
    )
    assert theirs == ours
    failed = [episode for episode in played["vllm"] if not episode.won]
    assert failed
    assert any(episode.notes for episode in failed) == (agent == "reflexion")
    assert all(
        'a line that begins with "Thought 1:"' in episode.steps[0].prompt
        for episode in played["vllm"]
    )
