"""What a session remembers of its calls."""

import numpy as np

from gigpo_jax.engines.base import Completion
from gigpo_jax.engines.endpoint.requests import read_completion_request
from gigpo_jax.engines.endpoint.sessions import EndpointSession
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.models.text.chat_messages import chat_text
from tests.engines.endpoint.serving import SAMPLING, TOKENIZER


def recorded(prompt: str, response: list[int], content: str) -> tuple[EndpointSession, list[int]]:
    """A session with one call, and all its ids."""
    session = EndpointSession("id", Task("a task", "", ""), SAMPLING, lambda call: (0, call), 9, 99)
    tokens = session.prompt_tokens(prompt, TOKENIZER)
    completion = Completion(
        np.array(response, np.int32), np.zeros(len(response), np.float32), "stop", 0
    )
    asked = read_completion_request({"prompt": prompt}, SAMPLING, recorded=True)
    session.record_call(asked, tokens, content, completion, anchor="", tokenizer=TOKENIZER)
    return session, [*tokens, *response]


def test_a_call_keeps_all_that_the_engine_says_of_its_tokens() -> None:
    session, _ = recorded(chat("door"), [5, 6], "go")
    asked = read_completion_request({"prompt": "key"}, SAMPLING, recorded=True)
    completion = Completion(
        tokens=np.array([5, 6], np.int32),
        logprobs=np.array([-1.0, -2.0], np.float32),
        finish_reason="length",
        version=3,
        versions=np.array([2, 3], np.int32),
        routes=np.ones((2, 1, 1), np.int32),
        entropies=np.array([0.5, 0.25], np.float32),
    )
    session.record_call(asked, [7], "", completion, anchor="", tokenizer=TOKENIZER)
    turn = session.turns[-1]
    assert (turn.finish_reason, turn.version) == ("length", 3)
    for name in ("logprobs", "versions", "routes", "entropies"):
        np.testing.assert_array_equal(getattr(turn, name), getattr(completion, name))


def chat(*contents: str) -> str:
    roles = ("user", "assistant")
    return chat_text(
        TOKENIZER, [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    )


def test_the_end_of_a_turn_is_not_read_twice() -> None:
    """It was sampled, and the template writes it again."""
    spelled = [
        TOKENIZER.token_id(piece) for piece in ("g", "##o", "<eos>")
    ]  # "go" is a word of its own
    session, known = recorded(chat("door"), spelled, "go")
    later = session.prompt_tokens(chat("door", "go", "key"), TOKENIZER)
    assert later == [*known, *TOKENIZER.encode("<bos>key<sep>")]
    assert later.count(TOKENIZER.token_id("<eos>")) == 1


def test_a_response_without_an_end_gets_that_of_the_template() -> None:
    session, known = recorded(
        chat("door"), [TOKENIZER.token_id("g"), TOKENIZER.token_id("##o")], "go"
    )
    later = session.prompt_tokens(chat("door", "go", "key"), TOKENIZER)
    assert later == [*known, *TOKENIZER.encode("<eos><bos>key<sep>")]


def test_a_stop_that_the_text_leaves_out_is_in_the_prompt_as_often_as_the_program_writes_it() -> (
    None
):
    session, known = recorded("<bos>open", TOKENIZER.encode("the door and"), "the door")
    assert session.prompt_tokens("<bos>openthe door and it", TOKENIZER) == [
        *known,
        *TOKENIZER.encode("it"),
    ]
    without = "<bos>openthe door it"
    assert session.prompt_tokens(without, TOKENIZER) == TOKENIZER.encode(without)


def test_a_prompt_that_shows_another_past_is_encoded_whole() -> None:
    session, _ = recorded(chat("door"), TOKENIZER.encode("go north<eos>"), "go north")
    for other in (chat("door", "north", "key"), chat("key"), chat("doors", "go north", "key")):
        assert session.prompt_tokens(other, TOKENIZER) == TOKENIZER.encode(other)


def test_the_same_prompt_again_is_not_one_that_shows_the_response() -> None:
    """A stop may cut all of the text."""
    session, _ = recorded("<bos>open", TOKENIZER.encode("the door"), "")
    assert session.prompt_tokens("<bos>open", TOKENIZER) == TOKENIZER.encode("<bos>open")
