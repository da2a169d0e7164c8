"""Responses of a model."""

import contextlib
import json

from gigpo_jax.engines.endpoint.tools import read_calls
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.react import read_step
from gigpo_jax.envs.cards.responses import parse_card_response
from gigpo_jax.envs.search.actions import parse_response
from gigpo_jax.envs.sokoban.prompt import parse_move
from gigpo_jax.envs.tool_calls import ActionError, read_action
from gigpo_jax.methods.hiper.subgoals import read_subgoal
from gigpo_jax.methods.rebel.beliefs import read_belief

TOOLS = {"look": {"properties": {"n": {"type": ["integer", "null"]}}}, "go": None}


def read_response(data: bytes) -> None:
    """Responses of a model, by all parsers of actions, plans and calls."""
    text = data.decode(errors="replace")
    for parse in (parse_tagged, read_step, parse_move, parse_response, read_subgoal, read_belief):
        parse(text)
    parse_card_response(text, actions=("hit", "stand"))
    for prompt in ("", "<think>\n"):
        json.dumps(read_calls(text, TOOLS, prompt), allow_nan=False).encode()
    with contextlib.suppress(ActionError):
        read_action(text, TOOLS)


def seed_responses() -> list[bytes]:
    function = "<function=look>\n<parameter=n>\n3\n</parameter>\n</function>"
    call = '<tool_call>\n{"name": "go", "arguments": {"to": [1, "x"]}}\n</tool_call>'
    texts = (
        "<think>a thought</think><action>go to drawer 1</action>",
        "Thought 1: look\nAction 1: look\nObservation 1: x",
        f"text <tool_call>{function}</tool_call>{call}",
        '{"name": "look", "parameters": {"n": 1}}',
        '<belief>{"a": 1}</belief><decision>SWITCH</decision><subgoal>x</subgoal>',
        '{"tool": "look", "arguments": {"n": 1}}',
        "<think>x</think><search>who?</search><answer>me</answer>",
    )
    return [text.encode() for text in texts]
