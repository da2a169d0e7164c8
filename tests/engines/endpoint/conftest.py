"""Clients of the endpoint that a module of tests serves as its fixture `endpoint`."""

import contextlib
from collections.abc import Iterator

import openai
import pytest

from gigpo_jax.engines.endpoint.server import Endpoint
from tests.engines.endpoint.serving import client


@pytest.fixture(scope="module")
def policy(endpoint: Endpoint) -> Iterator[openai.OpenAI]:
    with client(f"{endpoint.url}/v1") as made:
        yield made


@pytest.fixture
def session(policy: openai.OpenAI) -> Iterator[openai.OpenAI]:
    """A client whose calls are recorded; its session is ended."""
    opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
    with client(opened["base_url"]) as made:
        yield made
        with contextlib.suppress(
            openai.NotFoundError, openai.BadRequestError
        ):  # it has ended, or had no call
            made.post("/reward", body={"reward": 0.0}, cast_to=object)
