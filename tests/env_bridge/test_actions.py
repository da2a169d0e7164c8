"""Response -> action, against the published rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigpo_jax.env_bridge.actions import Response, is_admissible, parse_tagged

THOUGHT = "<think> where is it </think>"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            f"{THOUGHT}<action> Take Mug 1 from desk 1\n</action>",
            Response("take mug 1 from desk 1", True),
        ),
        (f"{THOUGHT}<action>look</action> and <action>go</action>", Response("look", True)),
        (f"{THOUGHT}<action>go to <action>desk 1</action>", Response("go to <action>desk 1", True)),
        (f"<action>look</action>{THOUGHT}", Response("look", True)),
        (f"{THOUGHT}<action></action>", Response("", True)),
        (f"{THOUGHT}\u0130<Action>Look</ACTION>", Response("look", True)),
        ("<THINK>x</THINK><action>look</action>", Response("look", False)),
        (
            f"{THOUGHT}<act\u0131on>look</action>",
            Response(f"{THOUGHT}<act\u0131on>look</action>"[-30:], False),
        ),
        ("<think>x<action>look</action>", Response("look", False)),
        ("x</think><action>look</action>", Response("look", False)),
        ("<action>look</action>", Response("look", False)),
        ("<think>\u6211</think><action>look</action>", Response("look", False)),
        (f"{THOUGHT}<action>\u9fff</action>", Response("\u9fff", False)),
        (f"{THOUGHT}<action>\u4dff \ua000 \u3042</action>", Response("\u4dff \ua000 \u3042", True)),
        (
            f"{THOUGHT}<action>go to desk 1",
            Response("where is it </think><action>go to desk 1"[-30:], False),
        ),
        (
            f"{THOUGHT}</action><action>look",
            Response(f"{THOUGHT}</action><action>look"[-30:], False),
        ),
        (
            "I would GO TO the DESK number 1 and look",
            Response("to the desk number 1 and look"[-30:].rjust(30), False),
        ),
        ("", Response("", False)),
    ],
)
def test_the_published_rules(response: str, expected: Response) -> None:
    assert parse_tagged(response) == expected


def test_the_fallback_takes_as_many_characters_as_told() -> None:
    assert parse_tagged("0123456789" * 5, fallback_chars=20).action == "01234567890123456789"
    assert parse_tagged("short", fallback_chars=20).action == "short"
    assert parse_tagged("short", fallback_chars=0).action == ""


def test_commands_keep_their_case() -> None:
    response = "<think></think><ACTION> ls -R </ACTION>"
    assert parse_tagged(response, keeps_case=True) == Response("ls -R", True)
    assert parse_tagged(response).action == "ls -r"
    assert parse_tagged("No TAGS", keeps_case=True).action == "No TAGS"


_PIECES = st.sampled_from(
    ["<action>", "</action>", "<think>", "</think>", "look", " ", "\u6211", "\ud800", "<|im_end|>"]
)


@given(st.one_of(st.text(), st.lists(st.one_of(_PIECES, st.text(max_size=3))).map("".join)))
def test_any_text_is_parsed_and_a_valid_response_has_all_its_parts(response: str) -> None:
    parsed = parse_tagged(response)
    start = response.find("<action>")
    end = response.find("</action>")
    has_pair = 0 <= start < end
    has_thought = "<think>" in response and "</think>" in response
    chinese = any("\u4e00" <= character <= "\u9fff" for character in response)
    assert parsed.valid == (has_pair and has_thought and not chinese)
    assert parsed.action == (
        response[start + 8 : end].strip().lower() if has_pair else response[-30:].lower()
    )


def test_admissible_actions_may_have_a_hole() -> None:
    listed = ("search[<your query>]", "click[< prev]", "click[b01]")
    assert is_admissible("click[b01]", listed) is True
    assert is_admissible("search[red shoes]", listed) is True
    assert is_admissible("search[]", listed) is False
    assert is_admissible("click[next >]", listed) is False
    assert is_admissible("", listed) is False
    assert is_admissible("look", ()) is False
    assert is_admissible("look", None) is None
