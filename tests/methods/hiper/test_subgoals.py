"""Subgoals in responses and prompts."""

import time
from functools import partial

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.plans import shows_plans
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs import registry
from gigpo_jax.methods.hiper.subgoals import (
    ask_subgoal,
    read_subgoal,
    subgoal_parser,
    write_subgoal,
)
from gigpo_jax.methods.strata.plan import StrategyRequest
from gigpo_jax.rollout.demonstrations import demonstrate_episode
from gigpo_jax.rollout.episode_settings import EpisodeSettings

parse = subgoal_parser(partial(parse_tagged, fallback_chars=30))
WHOLE = "<switch>SWITCH</switch><subgoal>find  the ring</subgoal><action>open drawer 2</action>"


def test_a_whole_response_gives_plan_and_action() -> None:
    response = parse(WHOLE)
    assert (response.action, response.plan, response.valid) == (
        "open drawer 2",
        "find the ring",
        True,
    )
    parts = read_subgoal(WHOLE)
    assert parts.switches
    assert WHOLE[slice(*parts.decision_span)] == "SWITCH"
    assert WHOLE[slice(*parts.subgoal_span)] == "find  the ring"
    assert WHOLE[parts.subgoal_end :] == "<action>open drawer 2</action>"
    assert not read_subgoal(WHOLE.replace("SWITCH", "keep")).switches


@pytest.mark.parametrize(
    ("response", "plan"),
    [
        (WHOLE.replace("SWITCH", "MAYBE"), "find the ring"),
        (WHOLE.replace("</subgoal>", ""), ""),
        (WHOLE.replace("find  the ring", " "), ""),
        (WHOLE.replace("</action>", ""), "find the ring"),
        ("<action>open drawer 2</action>", ""),
        # The action of a subgoal is none.
        ("<switch>KEEP</switch><action>take ring</action><subgoal>x</subgoal>", "x"),
    ],
)
def test_a_response_without_one_of_its_parts_is_invalid(response: str, plan: str) -> None:
    parsed = parse(response)
    assert (parsed.plan, parsed.valid) == (plan, False)
    assert parsed.action != "take ring"


def test_long_responses_take_linear_time() -> None:
    start = time.thread_time()
    for text in ("<subgoal>" * 20_000, "<switch> " + " " * 200_000, "<switch>KEEP" * 20_000):
        assert read_subgoal(text) == (False, "", None, None, 0)
    assert time.thread_time() - start < 2.0


def test_prompts_show_the_plan_and_ask_for_it() -> None:
    observation = Observation("a coin", "a coin", ("take coin",), "find the ring")
    history = History(0)
    for style, request in (("full", "<subgoal> and </subgoal>"), ("compact", "")):
        template = ask_subgoal(registry.find_style("example", style), None)
        build = partial(build_prompt, template, observation, history, encode=str.split, limit=500)
        history.plan = None
        before = build().text
        assert request in before
        assert "<think>" not in before
        history.plan = "open drawer 2"
        after = build().text
        assert {*after.split()} - {*before.split()} >= {"open", "drawer", "2"}
        assert len(after) > len(before)
        request = StrategyRequest(registry.find_style("example", style))
        history.plan = None
        text = build_prompt(request, observation, history, encode=str.split, limit=500).text
        assert text.endswith(
            "plan" if style == "compact" else "Write the strategy and nothing else."
        )
        assert "a coin" in text
        assert "<action>" not in text
    assert not shows_plans(registry.find_style("example", "tagged"))
    assert not shows_plans(registry.find_style("example", "chat"))


def test_an_expert_demonstrates_its_subgoals() -> None:
    settings = EpisodeSettings(
        template=registry.find_style("example", "compact"),
        parse=parse,
        max_steps=12,
        prompt_tokens=200,
        plan="subgoal",
    )
    env = registry.make("example")
    task = env.tasks("train")[0]
    play = partial(demonstrate_episode, env, encode=str.split, encode_response=str.split)
    demonstration = play(registry.make_expert("example", 3), task, settings)
    assert demonstration.won
    goal = f"find the {task.type.removeprefix('find_')}"
    take = goal.replace("find the", "take")
    subgoals = [goal] * (len(demonstration.turns) - 1) + [take]
    switches = [True] + [False] * (len(subgoals) - 2) + [True]
    for number, turn in enumerate(demonstration.turns):
        parts = read_subgoal(turn.response)
        assert parse(turn.response).valid
        assert (parts.subgoal, parts.switches) == (subgoals[number], switches[number])
        assert (f"plan {goal}" in turn.prompt) == (number > 0)
        assert write_subgoal(
            f"<think></think><action>{parse(turn.response).action}</action>",
            parts.subgoal,
            None if parts.switches else parts.subgoal,
        ) == turn.response  # fmt: skip
    expert = registry.make_expert("frozenlake", 0)
    lake = registry.make("frozenlake")
    with pytest.raises(InputError, match=r"env\.plan='subgoal': the expert .* names no subgoal;"):
        demonstrate_episode(
            lake, expert, lake.tasks("train")[0], settings, encode=str.split,
            encode_response=str.split,
        )  # fmt: skip


def test_the_alfworld_expert_works_through_the_parts_of_its_task() -> None:
    from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs
    from gigpo_jax.envs.alfworld.expert.thoughts import name_subgoal
    from gigpo_jax.envs.alfworld.phrases import parse_phrase

    goal = parse_phrase("put a clean mug in shelf")
    beliefs = Beliefs("You see a shelf 1, and a sinkbasin 1.")
    names = [name_subgoal(goal, beliefs)]
    for held, is_clean in (("plate 1", False), ("mug 1", False), ("mug 1", True)):
        beliefs.held = held
        if is_clean:
            beliefs.changed["clean"].add(held)
        names.append(name_subgoal(goal, beliefs))
    assert names == ["find mug", "put down plate", "clean mug", "put mug in shelf"]


def test_a_guide_demonstrates_its_strategy_before_the_first_step() -> None:
    entry = registry.spec("examples.corridor.env:CORRIDOR")
    settings = EpisodeSettings(
        template=entry.styles["compact"],
        parse=entry.parse,
        max_steps=8,
        prompt_tokens=72,
        plan="strategy",
    )
    env = registry.make("examples.corridor.env:CORRIDOR")
    task = env.tasks("train")[0]
    expert = registry.make_expert("examples.corridor.env:CORRIDOR", 0)
    play = partial(demonstrate_episode, env, encode=str.split, encode_response=str.split)
    first, *rest = play(expert, task, settings).turns
    strategy = f"open {task.type} door"
    assert (first.response, first.is_text) == (strategy, True)
    assert first.prompt.endswith(" plan")
    assert all(f"plan {strategy} now" in turn.prompt and not turn.is_text for turn in rest)
    assert len(rest) == 7
