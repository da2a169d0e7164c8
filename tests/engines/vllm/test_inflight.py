"""Weights in flight with a real vLLM server: which weights sampled which token, and what a run
makes of it.
"""

import asyncio
import functools
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.engines.vllm.server import VllmServer
from gigpo_jax.learner.learner import MISMATCH, Learner, ScoredSteps
from gigpo_jax.main import main
from gigpo_jax.models import decoder, lora
from gigpo_jax.models.files.checksum import folder_checksum
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.lora import LoraConfig
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.trajectory import Turn
from tests.engines.vllm import serving
from tests.engines.vllm.serving import (
    TINY,
    learner_distributions,
    learner_logprobs,
    shaken,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800), pytest.mark.usefixtures("compiled_once")]

REQUESTS = 80  # of one version; 64 run together
TOKENS = 64
LORA = LoraConfig(4, 8.0)
SETTINGS = (
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 0.5, "top_k": 3},
    {"temperature": 0},
)
ITERATIONS = 5
STALENESS = 2


def policies(count: int, rank: int) -> tuple[Any, list[decoder.Params]]:
    """The tiny model's shape, and parameters that follow each other."""
    config, params = load_hf(TINY)
    if not rank:
        return config, [params, *(shaken(params, seed) for seed in range(1, count))]
    adapter = lora.init_adapter(config, LORA, jax.random.key(0))
    adapters = [adapter, *(shaken(adapter, seed, 0.05) for seed in range(1, count))]
    return config, [lora.attach_adapter(params, pairs, LORA.scale) for pairs in adapters]


def own_logprobs(
    config: Any,
    pushed: Sequence[decoder.Params] | dict[int, decoder.Params],
    prompt: list[int],
    response: np.ndarray,
    versions: np.ndarray,
) -> np.ndarray:
    """Log-probability of each token under the weights of its version."""
    values = np.zeros(len(response), np.float32)
    for version in np.unique(versions):
        scores = learner_logprobs(config, pushed[version], prompt, response, 1.0)
        values[versions == version] = scores[versions == version]
    return values


def token_versions(response: Completion | Turn) -> np.ndarray:
    if response.versions is None:
        return np.full(len(response.logprobs), response.version)
    return response.versions


@pytest.mark.parametrize("rank", [0, LORA.rank], ids=["weights", "adapter"])
def test_running_requests_go_on_and_each_token_has_its_version_and_log_probability(
    tmp_path: pathlib.Path, rank: int
) -> None:
    config, pushed = policies(3, rank)
    words = load_tokenizer(TINY)
    prompt = words.encode_chat("you are in a room .")

    async def ask_during_pushes(engine: RemoteEngine) -> list[Completion]:
        requests: list[asyncio.Future[Completion]] = []
        for version, params in enumerate(pushed):
            if version:
                await asyncio.to_thread(engine.update_weights, params, version)
            wave = []
            for index in range(REQUESTS):
                # Of several lengths: they do not end together.
                settings = SamplingParams(max_tokens=TOKENS - index % 32, key=(version, index))
                wave.append(asyncio.ensure_future(engine.generate(prompt, settings)))
            requests += wave
            # The others of the wave run or wait.
            await asyncio.wait(wave, return_when=asyncio.FIRST_COMPLETED)
        return await asyncio.gather(*requests)

    weights = tmp_path / "weights"
    process = serving.start(TINY, tmp_path / "logs", weights, lora_rank=rank)
    keeping = functools.partial(VllmServer, keeps_entropies=True)
    base = folder_checksum(TINY) if rank else ""
    settings: dict[str, Any] = {"inflight": True, "base": base, "server": keeping}
    try:
        serving.wait_up(process)
        with serving.engine(
            config, pushed[0], words, urls=(process.url,), weights_dir=weights, **settings
        ) as engine:
            responses = asyncio.run(ask_during_pushes(engine))
            assert engine.retries == 0
            others = [serving.ask(engine, [prompt], **chosen)[0] for chosen in SETTINGS]
            assert engine.last_push["probe_difference"] < 1e-4
    finally:
        process.stop()
    mixed = [response for response in responses if response.versions is not None]
    assert {response.version for response in responses} == {0, 1, 2}
    assert {response.version for response in mixed} == {0, 1}
    for response in [*mixed[:20], *mixed[-20:], responses[0], responses[-1]]:
        versions = token_versions(response)
        assert np.all(np.diff(versions) >= 0)
        # Behind a push vLLM computes keys and values anew: each token is of one version alone.
        expected = own_logprobs(config, pushed, prompt, response.tokens, versions)
        np.testing.assert_allclose(response.logprobs, expected, atol=1e-3)
    for response in (mixed[0], mixed[-1]):
        check_entropies(config, pushed, prompt, response)
    for response, chosen in zip(others, SETTINGS, strict=True):
        check_entropies(config, pushed, prompt, response, **chosen)


def check_entropies(
    config: Any,
    pushed: list[decoder.Params],
    prompt: list[int],
    response: Completion,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
) -> None:
    """Compares with the distributions over the whole vocabulary."""
    versions = token_versions(response)
    entropies = np.zeros(len(versions))
    for version in np.unique(versions):
        scores = learner_distributions(
            config, pushed[version], prompt, response.tokens, temperature
        )
        for place in np.flatnonzero(versions == version):
            probability = np.sort(np.exp(scores[place], dtype=np.float64))[::-1]
            if top_k:
                probability = probability[:top_k]
            # The token that reaches the share belongs to it.
            probability = probability[np.cumsum(probability) - probability < top_p]
            probability = probability / probability.sum()
            entropies[place] = -np.sum(probability * np.log(probability))
    assert response.entropies is not None
    np.testing.assert_allclose(response.entropies, entropies, atol=1e-3)
    assert np.ptp(response.entropies) > 0.01


@dataclass(frozen=True)
class Iteration:
    """What the learner got in an iteration.

    Attributes:
      turns: Steps.
      recomputed: Log-probabilities of their tokens under the newest weights.
      mismatch: The metric of their difference to those of the engine.
    """

    turns: list[Turn]
    recomputed: list[np.ndarray]
    mismatch: float


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> dict[int, decoder.Params]:
    """The weights of each version, as a run pushes them."""
    versions: dict[int, decoder.Params] = {}
    update_weights = RemoteEngine.update_weights

    def record_push(engine: RemoteEngine, params: decoder.Params, version: int) -> None:
        versions[version] = jax.tree.map(np.asarray, params)
        update_weights(engine, params, version)

    monkeypatch.setattr(RemoteEngine, "update_weights", record_push)
    return versions


@pytest.fixture
def iterations(monkeypatch: pytest.MonkeyPatch) -> list[Iteration]:
    """The iterations of a run, as it learns them."""
    learned: list[Iteration] = []
    learn = Learner.learn

    def record_steps(learner: Learner, scored: ScoredSteps, *args: Any) -> Any:
        turns = [step.turn for step in scored.steps]
        recomputed = scored.token_logprobs.logprob
        metrics, credit = learn(learner, scored, *args)
        learned.append(Iteration(turns, recomputed, metrics[MISMATCH]))
        return metrics, credit

    monkeypatch.setattr(Learner, "learn", record_steps)
    return learned


def check_iteration(
    config: Any, pushed: dict[int, decoder.Params], iteration: Iteration, number: int
) -> int:
    """Checks versions and log-probabilities; returns the number of turns of several versions."""
    turns = iteration.turns
    versions = [token_versions(turn) for turn in turns]
    assert number - STALENESS <= min(version.min() for version in versions)
    assert max(version.max() for version in versions) <= number
    mixed = [turn for turn in turns if turn.versions is not None]
    for turn in [*mixed[:8], turns[0], turns[-1]]:
        prompt = turn.prompt_tokens.tolist()
        own = own_logprobs(config, pushed, prompt, turn.response_tokens, token_versions(turn))
        np.testing.assert_allclose(turn.logprobs, own, atol=1e-3)
    # The correction takes the ratio of these two numbers; the metric is their difference.
    sampled = np.concatenate([turn.logprobs for turn in turns])
    difference = np.abs(np.concatenate(iteration.recomputed) - sampled)
    assert iteration.mismatch == pytest.approx(difference.mean(), rel=0.01, abs=1e-6)
    return len(mixed)


@pytest.mark.parametrize("rank", [0, LORA.rank], ids=["weights", "adapter"])
def test_a_run_learns_from_tokens_of_several_versions_by_their_own_log_probabilities(
    tmp_path: pathlib.Path,
    pushed: dict[int, decoder.Params],
    iterations: list[Iteration],
    rank: int,
) -> None:
    flags = {
        "engine.name": "vllm",
        "engine.slots": 8,  # slower than the updates, so that requests run at every push
        "train.max_staleness": STALENESS,
        "train.inflight": True,
        "train.iterations": ITERATIONS,
        "train.groups": 4,
        "train.save_rollouts": 0,
        "train.minibatch": 288,  # all steps, so that the metric is their mean
        "model.lora.rank": rank,
        "optim.lr": 1e-3,  # large, so that versions differ
        "env.workers": 1,
        "eval.panel": "",
    }
    words = [f"--config.{name}={value}" for name, value in flags.items()]
    assert main(["--config=quickstart", f"--workdir={tmp_path}", *words]) == 0
    config, _ = load_hf(TINY)
    assert len(iterations) == ITERATIONS
    counts = [
        check_iteration(config, pushed, iteration, number)
        for number, iteration in enumerate(iterations)
    ]
    assert sum(counts) > 0
    assert iterations[-1].mismatch > 10 * iterations[0].mismatch
