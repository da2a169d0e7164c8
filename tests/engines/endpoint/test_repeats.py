"""Requests that a client repeats: one step, whatever became of the first one."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gigpo_jax.engines.base import Completion
from gigpo_jax.engines.endpoint.server import Endpoint
from tests.engines.endpoint.serving import HEADS, KEY, Watched, client, make_engine, serving
from tests.processes import wait_until

KEYS = [{"Idempotency-Key": "a"}, {"X-Request-Id": "a"}]


@pytest.fixture(scope="module")
def engine() -> Iterator[Watched]:
    with make_engine() as made:
        yield made


@pytest.fixture(scope="module")
def endpoint(engine: Watched) -> Iterator[Endpoint]:
    with serving(engine) as made:
        yield made


@pytest.fixture
def delays(engine: Watched, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the next responses of the engine are late, each taken out by its call."""
    delays: list[float] = []
    generate = engine.generate

    async def late(*args: Any, **kwargs: Any) -> Completion:
        if delays:
            await asyncio.sleep(delays.pop())
        return await generate(*args, **kwargs)

    monkeypatch.setattr(engine, "generate", late)
    return delays


def reward(session: openai.OpenAI, value: Any) -> Any:
    return session.post("/reward", body={"reward": value}, cast_to=object)


@pytest.mark.parametrize("headers", KEYS)
def test_a_repeated_call_takes_the_place_of_one_that_still_runs(
    session: openai.OpenAI, delays: list[float], headers: dict
):
    delays.append(3.0)
    errors: list[openai.APIError] = []

    def call_late() -> None:
        try:
            session.chat.completions.create(**HEADS, extra_headers=headers)
        except openai.APIError as err:
            errors.append(err)

    # As behind a proxy that keeps the connection of the first request.
    orphan = threading.Thread(target=call_late)
    orphan.start()
    wait_until(lambda: not delays, 60)
    answer = session.chat.completions.create(**HEADS, extra_headers=headers)
    orphan.join(60)
    assert "the request was repeated" in str(errors[0])
    (step,) = reward(session, [1.0])["steps"]
    assert step["response"] == answer.choices[0].message.content


@pytest.mark.parametrize("headers", [*KEYS, {"x-stainless-retry-count": "1"}])
def test_a_repeated_call_gets_the_recorded_response(
    session: openai.OpenAI, engine: Watched, headers: dict
):
    before = len(engine.seen)
    first = session.chat.completions.create(**HEADS, extra_headers=headers)
    again = session.chat.completions.create(**HEADS, extra_headers=headers)
    events = session.chat.completions.create(**HEADS, extra_headers=headers | {"x": "y"})
    assert first.choices == again.choices == events.choices
    assert len(engine.seen) == before + 1
    other = {"model": "policy", "messages": [{"role": "user", "content": "go north"}]}
    session.chat.completions.create(**other, extra_headers=headers)
    assert len(reward(session, [0.0, 1.0])["steps"]) == 2


def test_the_retry_of_the_official_client_is_one_step(
    endpoint: Endpoint, policy: openai.OpenAI, delays: list[float]
):
    opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
    delays.append(5.0)
    with openai.OpenAI(
        base_url=opened["base_url"], api_key=KEY, max_retries=2, timeout=2.0
    ) as session:
        session.chat.completions.create(**HEADS)
        # The random key is the first request's.
        assert len(endpoint._sessions[opened["id"]].calls) == 1
        assert len(reward(session, [1.0])["steps"]) == 1


def test_an_earlier_call_with_the_same_prompt_is_another_step(session: openai.OpenAI):
    session.chat.completions.create(**HEADS)
    other = {"model": "policy", "messages": [{"role": "user", "content": "go north"}]}
    session.chat.completions.create(**other)
    session.chat.completions.create(**HEADS, extra_headers={"x-stainless-retry-count": "1"})
    assert len(reward(session, 1.0)["steps"]) == 3


def test_a_wrong_number_of_rewards_names_the_calls_that_may_be_repeated(endpoint: Endpoint):
    with client(f"{endpoint.url}/v1") as policy:
        opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
    with client(opened["base_url"]) as session:
        for _ in range(2):
            session.chat.completions.create(**HEADS)
        with pytest.raises(
            openai.BadRequestError,
            match=r"1 rewards for 2 recorded calls \(call 2 has the prompt of call 1: repeated",
        ):
            reward(session, [1.0])
        reward(session, 1.0)
