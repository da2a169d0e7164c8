"""Responses: every rule of the published projection."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigpo_jax.envs.search.actions import parse_response, split_action, write_response


@pytest.mark.parametrize(
    ("response", "action", "valid"),
    [
        (
            "<think>who?</think><search> river of Amber Ford </search>",
            "<search>river of Amber Ford</search>",
            True,
        ),
        ("<answer>Amber\nFord</answer>", "<answer>Amber\nFord</answer>", True),
        (
            "<search>a</search> and more <answer>b</answer>",
            "<search>a</search>",
            False,
        ),  # both: search wins
        (
            "<answer>b</answer><search>a</search>",
            "<answer>b</answer>",
            False,
        ),  # cut after the first closing tag
        ("<search>a</search><search>b</search>", "<search>a</search>", False),  # repeated
        ("<answer>a</answer><answer>b</answer>", "<answer>a</answer>", False),
        ("<answer>a<search>b</search>", "<search>b</search>", False),
        ("<Search>a</SEARCH>", "<search>a</search>", True),
        ("<search></search>", "<search></search>", True),
        (
            "</search><search>a</search>",
            "",
            False,
        ),  # a closing tag that comes first cuts everything off
        ("<search>never closed", "", False),
        ("plain words", "", False),
        ("", "", False),
    ],
)
def test_the_first_pair_counts(response: str, action: str, valid: bool) -> None:
    parsed = parse_response(response)
    assert (parsed.action, parsed.valid) == (action, valid)


@pytest.mark.parametrize("action", ["<search>river of x</search>", "<answer>Amber Ford</answer>"])
def test_what_is_written_is_read_again(action: str) -> None:
    parsed = parse_response(write_response(action))
    assert (parsed.action, parsed.valid) == (action, True)


def test_actions_are_taken_apart() -> None:
    assert split_action("<search> a b </search>") == ("search", "a b")
    assert split_action("<answer>x</answer>") == ("answer", "x")
    for action in (
        "",
        "search",
        "<search>",
        "<search>a</answer>",
        "x<answer>a</answer>",
        "<answer></answer",
    ):
        assert split_action(action) == ("", "")


PUBLISHED = {
    name: re.compile(rf"<{name}>(.*?)</{name}>", re.IGNORECASE | re.DOTALL)
    for name in ("search", "answer")
}
PIECES = ["<search>", "</search>", "<answer>", "</ANSWER>", "<Search>", " a\n", "<", "search>"]


@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_responses_are_read_as_by_the_published_expressions(pieces: list[str]) -> None:
    response = "".join(pieces)
    closing = re.search("</(?:search|answer)>", response, re.IGNORECASE)
    response_head = response[: closing.end()] if closing else response
    matches = [(name, pair.search(response_head)) for name, pair in PUBLISHED.items()]
    actions = [f"<{name}>{match[1].strip()}</{name}>" for name, match in matches if match]
    assert parse_response(response).action == (actions or [""])[0]


@pytest.mark.parametrize("end", ["", "</answer>", "</search>"])
def test_responses_are_read_in_linear_time(end: str) -> None:
    started = time.process_time()
    assert not parse_response("<search>" * 125_000 + end).valid
    assert time.process_time() - started < 5
