"""A teacher behind servers: which tokens get its scores, which servers are refused, what a server
that fails costs; and a real vLLM server beside the same folder as a local teacher.
"""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

pytest.importorskip("aiohttp")
from aiohttp import web

from gigpo_jax.config import resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.engines.remote.protocol import ServerFault
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.teachers import FrozenModel, ServedModel
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import Tokenizer, load_tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.trajectory import Step, finished_steps
from tests.engines.vllm import serving
from tests.learner.test_learner_updates import (
    find_signal,
    learn_steps,
    make_config,
    make_trajectories,
)
from tests.methods.opd.test_frozen_teacher import NO_CREDIT

LENGTH = 16  # tokens of prompt and response in `make_config`


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(serving.TINY)


def opd_config(teacher: str, **servers: float) -> ConfigDict:
    config = make_config()
    config.rl.algorithm, config.rl.kl_coef = "opd", 0.0
    config.rl.settings = ConfigDict({"teacher": teacher})
    config.sampling.temperature, config.rl.old_logprobs = 1.0, "engine"
    config.engine.connect_timeout_s = 0.5
    for name, value in servers.items():
        config.engine[name] = value
    return config


def learner_of(teacher: str, tokenizer: Tokenizer, **servers: float) -> Learner:
    shape, params = load_hf(serving.TINY)
    # Not the teacher itself, whose updates would be of rounding errors.
    params = serving.shaken(params, 1)
    config = resolve(opd_config(teacher, **servers))
    return Learner(config, Policy(shape, params, tokenizer), make_mesh(data=1, fsdp=1, tensor=1))


def make_steps() -> list[Step]:
    """Twelve steps; the second of each episode continues the conversation of the first."""
    steps = finished_steps(make_trajectories())
    for first in range(0, len(steps), 3):
        turn = steps[first].turn
        past = [turn.prompt_tokens, turn.response_tokens, np.int32([7, 5])]
        turn = dataclasses.replace(steps[first + 1].turn, prompt_tokens=np.concatenate(past))
        steps[first + 1] = dataclasses.replace(steps[first + 1], turn=turn)
    return steps


def teacher_scores(learner: Learner, kind: Any, steps: list[Step]) -> list[np.ndarray]:
    credited = CreditedSteps(learner.score_steps(steps), {}, NO_CREDIT, 0)
    return find_signal(learner, kind).compute_fields(credited)["teacher"]


def made_up_score(tokens: list[int], place: int) -> float:
    """A number that tells the token and everything before it."""
    return -(sum((n + 1) * token for n, token in enumerate(tokens[: place + 1])) % 997) / 100


class Answers:
    """Answers as vLLM does, with made-up scores.

    Attributes:
      texts: the texts that were scored.
      fail: called before each score.
    """

    def __init__(self, tokenizer: Tokenizer, length: int = LENGTH + 1, shift: float = 0.0) -> None:
        self._tokenizer, self._length, self._shift = tokenizer, length, shift
        self.texts: list[list[int]] = []
        self.fail: Callable[[], web.Response | None] = lambda: None

    async def __call__(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            cards = [{"id": "an adapter", "parent": "m", "max_model_len": 1}]
            return web.json_response(
                {"data": [*cards, {"id": "m", "parent": None, "max_model_len": self._length}]}
            )
        body = await request.json()
        assert body["model"] == "m"
        if request.path == "/detokenize":
            text = self._tokenizer.decode(body["tokens"], keep_special=True)
            return web.json_response({"prompt": text})
        failure = self.fail()
        if failure is not None:
            return failure
        tokens = body["prompt"]
        self.texts.append(tokens)
        rows: list[Any] = [None]
        for place in range(1, len(tokens)):
            score = made_up_score(tokens, place) + self._shift
            rows.append({str(tokens[place]): {"logprob": score, "rank": 1}})
        return web.json_response({"choices": [{"prompt_logprobs": rows}]})


@contextlib.contextmanager
def serve(answers: Answers) -> Iterator[str]:
    """Serves from a thread; yields the address."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def start() -> web.AppRunner:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answers)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)


def test_scores_are_those_of_the_response_tokens_and_a_conversation_is_one_text(
    tokenizer: Tokenizer,
) -> None:
    answers = Answers(tokenizer)
    steps = make_steps()
    with serve(answers) as url:
        learner = learner_of(url, tokenizer)
        assert find_signal(learner, FrozenModel) is None
        answers.texts.clear()
        scores = teacher_scores(learner, ServedModel, steps)
    for step, score in zip(steps, scores, strict=True):
        prompt = step.turn.prompt_tokens.tolist()
        text = prompt + step.turn.response_tokens.tolist()
        expected = [made_up_score(text, place) for place in range(len(prompt), len(text))]
        np.testing.assert_allclose(score, expected, rtol=1e-6)
    assert len(answers.texts) == 8  # of twelve steps four continue another


def test_a_server_that_fails_is_not_waited_for_while_another_answers(tokenizer: Tokenizer) -> None:
    good = Answers(tokenizer)
    bad = Answers(tokenizer)
    with serve(good) as url, serve(bad) as other:
        learner = learner_of(f"{other}, {url}", tokenizer)
        failures = []

        def fail() -> web.Response:
            failures.append(1)
            return web.Response(status=503)

        bad.fail = fail
        good.texts.clear()
        scores = teacher_scores(learner, ServedModel, make_steps())
    assert len(good.texts) == 8
    assert len(failures) == 4  # its half of the first requests, and no repetition
    assert all(len(score) == 3 for score in scores)


def test_servers_that_are_lost_end_the_run_within_the_limit(tokenizer: Tokenizer) -> None:
    answers = Answers(tokenizer)
    with serve(answers) as url:
        learner = learner_of(url, tokenizer)
        answers.fail = lambda: web.Response(status=503, text="overloaded")
        with pytest.raises(EngineLost, match=r"rl\.settings\.teacher: http.*status 503: overl"):
            teacher_scores(learner, ServedModel, make_steps())
        answers.fail = lambda: web.Response(status=400, text="too long")
        with pytest.raises(EngineLost, match="refuses the request: too long"):
            teacher_scores(learner, ServedModel, make_steps())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"length": LENGTH}, "takes 16 tokens.*--max-model-len 17"),
        ({"shift": 10.0}, "above 0"),
        ({"shift": float("nan")}, "above 0"),
        ({"tokenizer": word_tokenizer(["look"])}, "its tokens are not those of the policy"),
    ],
)
def test_servers_with_other_models_are_refused(
    tokenizer: Tokenizer, changes: dict[str, Any], reason: str
) -> None:
    with (
        serve(Answers(**{"tokenizer": tokenizer} | changes)) as url,
        pytest.raises(InputError, match=reason),
    ):
        learner_of(url, tokenizer)


def test_servers_of_two_models_are_refused(tokenizer: Tokenizer) -> None:
    with (
        serve(Answers(tokenizer)) as url,
        serve(Answers(tokenizer, shift=-0.2)) as other,
        pytest.raises(InputError, match=r"0\.2 nats a token differently from http"),
    ):
        learner_of(f"{url},{other}", tokenizer)


def test_a_server_that_is_not_there_is_one_line(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9: .*correct its address"):
        learner_of("http://127.0.0.1:9", tokenizer)


@pytest.mark.parametrize(
    ("teacher", "temperature", "reason"),
    [
        ("http://a:1", 0.7, r"sampling\.temperature=0\.7: servers of rl\.settings\.teacher score"),
        ("http://a:1,b:2", 1.0, r"rl\.settings\.teacher.*'b:2' is not like http"),
        ("http://a:1/v1", 1.0, r"rl\.settings\.teacher.*is not like http"),
    ],
)
def test_configs_that_cannot_work_are_refused(
    teacher: str, temperature: float, reason: str
) -> None:
    config = opd_config(teacher)
    config.sampling.temperature = temperature
    with pytest.raises(InputError, match=reason):
        resolve(config)


@pytest.mark.slow
@pytest.mark.vllm
def test_a_real_server_scores_as_the_folder_does_until_it_is_killed(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", serving.KEY)
    processes = [serving.start(serving.TINY, tmp_path / name, tmp_path) for name in "ab"]
    try:
        for process in processes:
            serving.wait_up(process)
        urls = ",".join(process.url for process in processes)
        steps = make_steps()
        served = learner_of(urls, tokenizer, connect_timeout_s=5.0)
        local = learner_of(str(serving.TINY), tokenizer)
        expected = teacher_scores(local, FrozenModel, steps)
        theirs = teacher_scores(served, ServedModel, steps)
        for one, other in zip(theirs, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
        assert np.ptp(np.concatenate(expected)) > 1
        # Parameters are not compared: Adam makes a step of one size from any rounding.
        metrics = [learn_steps(learner, steps, 0)[0] for learner in (served, local)]
        for name in ("policy/loss", "policy/grad_norm"):
            assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-3), name
        assert metrics[0]["policy/grad_norm"] > 0.01

        scorer = find_signal(served, ServedModel)._scorer
        texts = [np.arange(60, dtype=np.int32) + number for number in range(200)]
        timer = threading.Timer(0.3, serving.kill_hard, [processes[0]])
        timer.start()
        rows = scorer.score(texts)
        timer.join()
        assert all(len(row) == 59 for row in rows)
        np.testing.assert_allclose(rows[0], scorer.score(texts[:1])[0], atol=1e-4)
        serving.kill_hard(processes[1])
        with pytest.raises(ServerFault, match="http://127"):
            scorer.score(texts[:2])
    finally:
        for process in processes:
            process.stop()
