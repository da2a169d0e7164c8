"""Whole episodes through worker processes: with a retriever, and without one that answers."""

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.envs import registry
from gigpo_jax.envs.search.retrieval.bm25_index import Bm25Index, open_index
from gigpo_jax.envs.search.retrieval.retriever import Hit
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.rollout import RolloutJob, rollout
from gigpo_jax.trajectory import Trajectory
from tests.envs.search.serving import serving
from tests.processes import patience

TOKENIZER = word_tokenizer(["river"])
ENTRY = registry.ENVIRONMENTS["search"]
SETTINGS = EpisodeSettings(
    template=ENTRY.styles["compact"],
    parse=ENTRY.parse,
    max_steps=ENTRY.max_steps,
    prompt_tokens=4000,
    history=ENTRY.history,
    invalid_penalty=ENTRY.invalid_penalty,
    sampling=SamplingParams(max_tokens=32, stop_strings=("</search>", "</answer>")),
)


class Searcher:
    """Searches for a river, says nothing, then answers."""

    async def generate(
        self, tokens: Sequence[int] | np.ndarray, params: SamplingParams
    ) -> Completion:
        prompt = TOKENIZER.decode(list(tokens))
        done = prompt.split().count("saw")
        text = ("<search>river</search>", "hm", "<answer>river</answer>")[min(done, 2)]
        response = np.asarray(TOKENIZER.encode(text), np.int32)
        return Completion(response, np.zeros(len(response), np.float32), "stop", 0)

    def end_session(self, session: tuple[int, int]) -> None:
        pass

    def update_weights(self, params: object, version: int) -> None:
        pass

    def close(self) -> None:
        pass


def play(world: Path, url: str, *, groups: int = 2, **options: float) -> list[Trajectory]:
    with EnvPool(
        ENTRY.build,
        {"data": str(world), "url": url} | options,
        workers=1,
        envs_per_worker=2 * groups,
    ) as pool:
        tasks = registry.make("search", data=str(world)).tasks("train")[:groups]
        runner = EpisodeRunner(Searcher(), TOKENIZER, SETTINGS)
        return asyncio.run(
            rollout(RolloutJob(tasks, group_size=2, iteration=0), {"": (runner, pool)})
        )


def test_episodes_search_over_http_and_pay_for_nonsense(world: Path) -> None:
    with serving(open_index(world / "index")) as url:
        played = play(world, url)
    assert [t.aborted for t in played] == [False] * 4
    for trajectory in played:
        assert [turn.action for turn in trajectory.turns] == [
            "<search>river</search>",
            "",
            "<answer>river</answer>",
        ]
        assert [turn.penalty for turn in trajectory.turns] == [0.0, 0.01, 0.0]
        assert trajectory.turns[1].anchor.startswith("<information>\n[1] ")
        assert trajectory.turns[2].anchor == trajectory.turns[1].anchor
    assert played[0].turns[1].anchor == played[1].turns[1].anchor


class Late:
    """An index that takes its time, one query at a time in each of its threads."""

    def __init__(self, index: Bm25Index, seconds: float) -> None:
        self._index = index
        self._seconds = seconds

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        time.sleep(self._seconds)
        return self._index.search(queries, topk)

    def close(self) -> None:
        pass


def test_the_searches_of_the_episodes_that_wait_go_out_together(world: Path) -> None:
    bodies: list[bytes] = []
    with serving(Late(open_index(world / "index"), 0.5), bodies, threads=16) as url:
        played = play(world, url, groups=8)
    assert [t.aborted for t in played] == [False] * 16
    assert [len(t.turns) for t in played] == [3] * 16
    # One worker: one search after the other would make 16 requests that take 8 s, and keep episodes
    # waiting for that.
    assert sum(len(json.loads(body)["queries"]) for body in bodies) == 16
    assert {json.loads(body)["topk"] for body in bodies} == {3}
    assert len(bodies) <= 8
    assert max(t.environment_s for t in played) < 6


def test_a_retriever_that_is_down_stops_the_run_and_says_so(world: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(
        RuntimeError, match=r"of 32 episodes were aborted.*retriever http://127.0.0.1.*is it up"
    ):
        play(world, f"http://127.0.0.1:{port}", groups=16, limit_s=1.0)
    assert time.monotonic() - started < patience(15), (
        "not each of 17 episodes after the whole limit"
    )
