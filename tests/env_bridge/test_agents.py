"""Agents: the exact prompts of ReAct, and how responses are read."""

import dataclasses
import time

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.agents import AGENTS, Agent, find_agent
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import Event, History, PromptInput
from gigpo_jax.env_bridge.react import ReAct, read_step
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs import registry
from gigpo_jax.methods.reflexion.agent import describe_reflections
from gigpo_jax.rollout.demonstrations import response_text

HOUSE = Instruct("You are in a house.", hidden=("help",))
SEEN = PromptInput(
    task="put a mug in shelf",
    first="You see a desk 1.",
    history=(
        Event("A desk 1 with a mug 1.", "take mug 1", "Here is the mug."),
        Event("You have it.", "look"),
    ),
    steps=3,
    observation="Nothing happens.",
    admissible=("go to shelf 1", "help"),
    task_type="put",
    advice=describe_reflections(["Look around.", "Take the mug.", "Go to the shelf.", "Be quick."])[
        1:
    ],
)
EXAMPLE = PromptInput(
    "put a pen in box", "", (Event("A pen 1.", "take pen 1", "A pen!"),), 1, "", None
)
OTHER = dataclasses.replace(EXAMPLE, task="heat an egg")

REACT = """\
You are in a house.
You work in steps. In each step you write a thought, which says what you know and what to do next, and one \
action. Then you get an observation, which says what the action led to.

Example 1.
Task: put a pen in box
Observation 0: A pen 1.
Thought 1: A pen!
Action 1: take pen 1
The task was done.

This is your task.
Your note after trial 2, which failed: Take the mug.
Your note after trial 3, which failed: Go to the shelf.
Your note after trial 4, which failed: Be quick.
Task: put a mug in shelf
Observation 0: You see a desk 1.
(Step 1 is not shown.)
Observation 1: A desk 1 with a mug 1.
Thought 2: Here is the mug.
Action 2: take mug 1
Observation 2: You have it.
Action 3: look
Observation 3: Nothing happens.
Actions that you can choose from now:
- go to shelf 1
Write your next thought in a line that begins with "Thought 4:", then your next action in a line that begins with \
"Action 4:", and nothing else."""


def test_the_prompt_of_react() -> None:
    template = ReAct(HOUSE, {"heat": (OTHER,), "put": (EXAMPLE,), "": (OTHER, EXAMPLE)})
    assert template(SEEN) == REACT
    unknown = template(dataclasses.replace(SEEN, task_type="fold"))
    assert unknown.index("heat an egg") < unknown.index("Example 2.\nTask: put a pen in box")
    assert "Example" not in ReAct(HOUSE, {})(SEEN)
    start = ReAct(Instruct(""), {})(PromptInput("do it", "", (), 0, "A room.", None))
    assert start.startswith("You work in steps.")
    assert (
        "\n\nThis is your task.\nTask: do it\nObservation 0: A room.\nWrite your next thought"
        in start
    )


def test_a_prompt_that_is_too_long_keeps_examples_and_notes() -> None:
    template = ReAct(HOUSE, {"": (EXAMPLE,)})
    history = History(9, "put")
    history.advice = describe_reflections(["Be quick."])
    for number in range(9):
        history.add(f"Room {number} with many things in it.", f"go to {number}", "On we go.")
    observation = Observation("The last room.", "", ("stay",), "find it")

    def prompt(limit: int) -> str:
        return build_prompt(template, observation, history, encode=str.split, limit=limit).text  # type: ignore[arg-type]

    whole = prompt(1000)
    cut = prompt(200)
    assert whole.count("On we go.") == 9
    assert 0 < cut.count("On we go.") < 9
    assert "Room 8" in cut
    for text in (whole, cut):
        assert "Task: put a pen in box" in text
        assert "which failed: Be quick." in text
        assert "The last room.\nActions that you can choose from now:\n- stay" in text


@pytest.mark.parametrize(
    ("response", "thought", "action"),
    [
        ("Thought 3: I see it.\nAction 3: take mug 1", "I see it.", "take mug 1"),
        ("I see it,\n  so I act.\n\naction: take mug 1  \n", "I see it, so I act.", "take mug 1"),
        ("**Thought 3:** I see it.\n**Action 3:** take mug 1**", "I see it.", "take mug 1"),
        ("Action 1: look", "", "look"),
        ("Thought 1: a\nAction 1: one\nThought 2: b\nAction 2: two", "a", "one"),
        (
            "Thought 1: a\nAction 1: one\nObservation 1: I won.\nAction 2: two\nObservation",
            "a",
            "one",
        ),
        (
            "Thought 1: My next action: look.\nAction 1:\nopen drawer 1",
            "My next action: look.",
            "open drawer 1",
        ),
        ("Thought 1: nothing else", None, None),
        ("Thought 1: a\nAction 1: \nObservation", None, None),
        ("<think></think><action>look</action>", None, None),
        ("", None, None),
    ],
)
def test_a_response_of_react_is_a_thought_and_an_action(
    response: str, thought: str, action: str
) -> None:
    assert read_step(response) == (None if action is None else (thought, action))


@pytest.mark.parametrize("end", ["", "\t", "\nObservation"])
def test_responses_of_react_are_read_in_linear_time(end: str) -> None:
    started = time.process_time()
    assert read_step("Action 1: " + "* " * 100_000 + end) is None
    assert time.process_time() - started < 5


def test_actions_are_those_of_the_environments_own_format() -> None:
    parse = AGENTS["react"].make_parser(parse_tagged, response_text)
    assert parse("Thought: Go.\nAction: Go To Desk 1") == Response("go to desk 1", True, "Go.")
    assert parse("Thought: Go.\nAction: 去") == Response("去", False, "Go.")
    # Without an action line: what the environment makes of it, but invalid.
    assert parse("<think></think><action>look</action>") == Response("look", False)
    assert AGENTS["plain"].make_parser(parse_tagged, response_text) is parse_tagged
    search = registry.spec("search")
    assert search.write is not None
    parse = AGENTS["react"].make_parser(search.parse, search.write)
    assert parse("Thought: Who?\nAction: <search>Ada Byron </search>") == Response(
        "<search>Ada Byron</search>", True, "Who?"
    )
    assert parse("Thought: Who?\nAction: Ada Byron") == Response("", False, "Who?")


TERSE = Agent(stop=("!",))


def test_an_agent_of_ones_own_is_named_by_its_module() -> None:
    assert find_agent("tests.env_bridge.test_agents:TERSE") is TERSE
    for name, message in (
        (
            "raect",
            "config.agent='raect': unknown; did you mean 'react'? "
            "known are plain, react, reflexion, or module:",
        ),
        (
            "tests.env_bridge.test_agents:REACT",
            "that is of type str, not gigpo_jax.env_bridge.agents.Agent",
        ),
        ("no.such:AGENT", "config.agent: cannot load no.such:AGENT"),
    ):
        with pytest.raises(InputError) as refused:
            find_agent(name)
        assert message in str(refused.value)
