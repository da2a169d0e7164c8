"""Programs that write the stop of a response again, with a policy that writes it too."""

from collections.abc import Iterator

import openai
import pytest

from gigpo_jax.engines.base import SamplingParams
from tests.engines.endpoint import bigram
from tests.engines.endpoint.serving import Watched, client, make_engine, serving

ACT = "act:"  # the last token of a prompt of completions
TABLE = {
    bigram.REPLY: {"<code>\n": 1.0},
    "<code>\n": {"print(7)": 0.5, "print(": 0.5},
    "print(": {"7)": 1.0},
    "print(7)": {"\n</code>": 0.5, "\n</": 0.5},
    "7)": {"\n</code>": 0.5, "\n</": 0.5},
    "\n</": {"code>": 1.0},
    "\n</code>": {bigram.END: 1.0},
    "code>": {bigram.END: 1.0},
    ACT: {" go": 0.5, " g": 0.5},
    " g": {"o": 1.0},
    "o": {"\nsee:": 1.0},
    " go": {"\nsee:": 1.0},
    "\nsee:": {" a door": 1.0},
}
WORDS = bigram.tokenizer(TABLE)
SAMPLING = SamplingParams(temperature=1.0, max_tokens=20, stop_token_ids=WORDS.stop_token_ids)


@pytest.fixture(scope="module")
def engine() -> Iterator[Watched]:
    with make_engine(bigram.policy(TABLE, WORDS), WORDS, 1000) as made:
        yield made


@pytest.fixture
def session(engine: Watched) -> Iterator[openai.OpenAI]:
    with (
        serving(engine, WORDS, sampling=SAMPLING, max_prompt_tokens=900) as endpoint,
        client(f"{endpoint.url}/v1") as policy,
        client(
            policy.post("/sessions", body={"task": "a task"}, cast_to=object)["base_url"]
        ) as made,
    ):
        yield made


def check_record(session: openai.OpenAI) -> str:
    """The second of three prompts, which extends the first; all have the ids of their texts."""
    steps = session.post("/reward", body={"reward": 1.0}, cast_to=object)["steps"]
    assert len(steps) == 3
    for step in steps:
        assert WORDS.decode(step["prompt_tokens"]) == WORDS.decode(WORDS.encode(step["prompt"]))
    read = [*steps[0]["prompt_tokens"], *steps[0]["tokens"]]
    assert steps[1]["prompt_tokens"][: len(read)] == read
    return steps[1]["prompt"]


@pytest.mark.slow
def test_a_program_that_appends_to_a_completion(session: openai.OpenAI):
    prompt = ACT
    for _ in range(3):
        text = (
            session.completions.create(model="policy", prompt=prompt, stop="\nsee:").choices[0].text
        )
        assert text == " go"
        prompt += f"{text}\nsee: a key\n{ACT}"
    assert check_record(session) == "act: go\nsee: a key\nact:"


def test_a_code_agent_of_smolagents_appends_the_end_of_its_code(session: openai.OpenAI):
    import smolagents

    model = smolagents.OpenAIServerModel(
        "policy", api_base=str(session.base_url), api_key=session.api_key
    )
    prompts = {**smolagents.agents.EMPTY_PROMPT_TEMPLATES, "system_prompt": "you write code."}
    agent = smolagents.CodeAgent(
        [], model, prompt_templates=prompts, max_steps=2, verbosity_level=0
    )
    agent.run("print it")
    assert "<code>\nprint(7)\n</code>\nCalling tools:" in check_record(session)
