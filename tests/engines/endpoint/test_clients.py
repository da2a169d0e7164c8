"""The client of Anthropic and the Agents SDK of OpenAI against the endpoint (make test-clients)."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gigpo_jax.engines.endpoint.server import Endpoint
from gigpo_jax.env_bridge.harnesses import SessionAddress
from tests.engines.endpoint import bigram
from tests.engines.endpoint.serving import KEY, Watched, make_engine, serving
from tests.engines.endpoint.test_tools import LOOK, ROOM, SAMPLING, TABLE, WORDS

pytestmark = pytest.mark.interfaces
TOOL = {"name": "look", "input_schema": LOOK["function"]["parameters"]}
ASKED: dict[str, Any] = {"model": "policy", "max_tokens": 60, "messages": ROOM, "tools": [TOOL]}


@pytest.fixture(scope="module")
def engine() -> Iterator[Watched]:
    with make_engine(bigram.policy(TABLE, WORDS), WORDS, 1100) as made:
        yield made


@pytest.fixture(scope="module")
def endpoint(engine: Watched) -> Iterator[Endpoint]:
    with serving(
        engine, WORDS, sampling=SAMPLING, max_prompt_tokens=1000, max_calls=8, clamp=True
    ) as made:
        yield made


@pytest.fixture
def address(policy: openai.OpenAI) -> SessionAddress:
    opened = policy.post("/sessions", body={"task": "a task"}, cast_to=object)
    return SessionAddress(opened["base_url"], KEY, "policy")


def sampled_text(engine: Watched) -> str:
    return WORDS.decode(engine.seen[-1][2].tokens.tolist())


def test_the_client_of_anthropic_reads_messages_and_streams(
    engine: Watched, address: SessionAddress, monkeypatch: pytest.MonkeyPatch
):
    import anthropic

    for name, value in address.environ().items():
        monkeypatch.setenv(name, value)
    with anthropic.Anthropic(max_retries=0) as client:
        whole = client.messages.create(**ASKED)
        text = sampled_text(engine)
        calls = [block for block in whole.content if block.type == "tool_use"]
        assert [call.input["at"] for call in calls] == re.findall("door|key", text)
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "rusty"} for call in calls
        ]
        chat = [
            *ROOM,
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": results},
        ]
        with client.messages.stream(**ASKED | {"messages": chat}) as stream:
            streamed = stream.get_final_message()
        first, second = engine.seen[-2:]
        read = [*first[0], *first[2].tokens.tolist()]
        assert second[0][: len(read)] == read
        text = sampled_text(engine)
        calls = [block for block in streamed.content if block.type == "tool_use"]
        assert [call.input["at"] for call in calls] == re.findall("door|key", text)
        assert streamed.stop_reason == "tool_use"
        assert streamed.usage.input_tokens == len(second[0])
        assert streamed.usage.output_tokens == len(second[2].tokens)
        counted = client.messages.count_tokens(model="policy", messages=ROOM, tools=[TOOL])
        assert counted.input_tokens == len(first[0])
        image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        with pytest.raises(anthropic.BadRequestError, match="only text"):
            client.messages.create(**ASKED | {"messages": [{"role": "user", "content": [image]}]})
        assert len(client.post("/v1/reward", body={"reward": 1}, cast_to=object)["steps"]) == 2


def test_the_client_of_openai_reads_responses_and_streams(engine: Watched, address: SessionAddress):
    tool = {"type": "function", "name": "look", "parameters": TOOL["input_schema"], "strict": False}
    asked: dict[str, Any] = {"model": "policy", "tools": [tool]}
    with openai.OpenAI(base_url=address.base_url, api_key=KEY, max_retries=0) as client:
        whole = client.responses.create(**asked, input="a room.")
        calls = [item for item in whole.output if item.type == "function_call"]
        things = [json.loads(call.arguments)["at"] for call in calls]
        assert things == re.findall("door|key", sampled_text(engine))
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "rusty"}
            for call in calls
        ]
        with client.responses.stream(
            **asked, input=results, previous_response_id=whole.id
        ) as stream:
            streamed = stream.get_final_response()
        first, second = engine.seen[-2:]
        read = [*first[0], *first[2].tokens.tolist()]
        assert second[0][: len(read)] == read
        calls = [item for item in streamed.output if item.type == "function_call"]
        things = [json.loads(call.arguments)["at"] for call in calls]
        assert things == re.findall("door|key", sampled_text(engine))
        assert streamed.usage.output_tokens == len(second[2].tokens)
        assert len(client.post("/reward", body={"reward": 1}, cast_to=object)["steps"]) == 2


@pytest.mark.parametrize("streams", [False, True])
def test_an_agent_of_the_agents_sdk_calls_its_tools(
    engine: Watched, address: SessionAddress, streams: bool
):
    import agents

    asked: list[str] = []

    @agents.function_tool
    def look(at: str) -> str:
        """Looks at a thing."""
        asked.append(at)
        return f"a {at}"

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=address.base_url, api_key=KEY, max_retries=0)
    model = agents.OpenAIResponsesModel(model="gpt-5", openai_client=client)
    agent = agents.Agent(name="a", instructions="look around.", tools=[look], model=model)
    before = len(engine.seen)

    async def run() -> None:
        if streams:
            result = agents.Runner.run_streamed(agent, "a room.", max_turns=3)
            async for _ in result.stream_events():
                pass
        else:
            await agents.Runner.run(agent, "a room.", max_turns=3)

    # The policy never ends without a call.
    with pytest.raises(agents.MaxTurnsExceeded):
        asyncio.run(run())
    texts = [WORDS.decode(completion.tokens.tolist()) for _, _, completion in engine.seen[before:]]
    assert len(texts) == 3
    assert sorted(asked) == sorted(re.findall("door|key", "".join(texts)))
    assert "a door" in WORDS.decode(engine.seen[-1][0]) or "a key" in WORDS.decode(
        engine.seen[-1][0]
    )
