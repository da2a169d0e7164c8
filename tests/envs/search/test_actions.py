"""Responses: every rule of the published projection."""

import pytest

from gigpo_jax.envs.search.actions import parse, split_action, write_action


@pytest.mark.parametrize(
    ("response", "action", "valid"),
    [
        ("<think>who?</think><search> river of Amber Ford </search>", "<search>river of Amber Ford</search>", True),
        ("<answer>Amber\nFord</answer>", "<answer>Amber\nFord</answer>", True),
        ("<search>a</search> and more <answer>b</answer>", "<search>a</search>", False),  # both: search wins
        ("<answer>b</answer><search>a</search>", "<answer>b</answer>", False),  # cut after the first closing tag
        ("<search>a</search><search>b</search>", "<search>a</search>", False),  # repeated
        ("<answer>a</answer><answer>b</answer>", "<answer>a</answer>", False),
        ("<answer>a<search>b</search>", "<search>b</search>", False),
        ("<Search>a</SEARCH>", "<search>a</search>", True),
        ("<search></search>", "<search></search>", True),
        ("</search><search>a</search>", "", False),  # a closing tag that comes first cuts everything off
        ("<search>never closed", "", False),
        ("plain words", "", False),
        ("", "", False),
    ],
)
def test_the_first_pair_counts(response: str, action: str, valid: bool) -> None:
    parsed = parse(response)
    assert (parsed.action, parsed.valid) == (action, valid)


@pytest.mark.parametrize("action", ["<search>river of x</search>", "<answer>Amber Ford</answer>"])
def test_what_is_written_is_read_again(action: str) -> None:
    parsed = parse(write_action(action))
    assert (parsed.action, parsed.valid) == (action, True)


def test_actions_are_taken_apart() -> None:
    assert split_action("<search> a b </search>") == ("search", "a b")
    assert split_action("<answer>x</answer>") == ("answer", "x")
    for action in ("", "search", "<search>", "<search>a</answer>", "x<answer>a</answer>", "<answer></answer"):
        assert split_action(action) == ("", "")
