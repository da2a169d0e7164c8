"""Environments of verifiers as ours, with the real package (make test-interfaces).

It cannot be in .venv: it needs mcp 1, and ours is mcp 2.
"""

import asyncio
import json
import signal
import sys
from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.prompts import Event, PromptInput
from gigpo_jax.env_bridge.types import EnvError, StepError
from gigpo_jax.envs import registry
from gigpo_jax.envs.command_line import main

pytest.importorskip("verifiers")
pytestmark = pytest.mark.interfaces

NAME = "verifiers:tests.envs.verifiers.odd_verifiers"


def make(way: str, **options: Any) -> Any:
    return registry.make(NAME, kwargs={"way": way}, **options)


def start(way: str, **options: Any) -> tuple[Any, Any]:
    """An environment and its first observation."""
    env = make(way, **options)
    return env, env.reset(env.tasks("train")[1])


def check(way: str, *flags: str) -> int:
    return main(["check", NAME, "--tasks", "2", "--option", f'kwargs={{"way": "{way}"}}', *flags])


@pytest.mark.parametrize("way", ["single", "tool", "counter"])
def test_an_environment_keeps_all_promises(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(way, "--limit", "60", "--option", "anchor=state") == 0
    assert capsys.readouterr().out.count("holds: ") == 6


def test_the_example_keeps_all_promises(capsys: pytest.CaptureFixture[str]) -> None:
    name = "verifiers:examples.verifiers.lake_moves"
    flags = ["--tasks", "1", "--limit", "60", "--option", 'kwargs={"rows": 8}']
    assert main(["check", name, *flags]) == 0
    assert capsys.readouterr().out.startswith("holds: 8 tasks ")


def test_the_example_counts_best_moves() -> None:
    from examples.verifiers.lake_moves import list_best_moves

    lake = ("SFFF", "FHFH", "FFFH", "HFFG")
    assert list_best_moves(lake, 0) == ["down", "right"]
    assert list_best_moves(lake, 14) == ["right"]
    assert list_best_moves(("SFHF", "FFHF", "HHFF", "FFFG"), 0) == []
    env = registry.make("verifiers:examples.verifiers.lake_moves", kwargs={"rows": 8})
    task = env.tasks("train")[0]
    env.reset(task)
    env.step("no move")
    result = env.step("<action>left</action>")
    assert (result.done, result.info["won"]) == (True, False)
    assert result.reward in (0.0, 0.5)
    env.close()


def test_a_single_turn_is_scored_by_the_rubric() -> None:
    env, observation = start("single")
    assert [len(env.tasks(split)) for split in ("train", "test")] == [4, 1]
    assert env.tasks("train")[1].answer == "2"
    assert observation.task == "Answer with a number.\nWhat is 1 + 1?"
    assert (observation.text, observation.admissible) == ("You have not answered yet.", None)
    result = env.step(" 2 ")
    assert (result.reward, result.done, result.info) == (1.0, True, {"won": True, "score": 1.0})
    assert env.step("more").reward == 0.0
    env.reset(env.tasks("train")[2])
    assert env.step("<think>3</think>").info == {"won": False, "score": 0.0}
    env.close()


def test_the_reward_from_which_an_episode_is_won_is_an_option() -> None:
    env, _ = start("single", won_from=0.25)
    result = env.step("<think>so</think> 7")
    assert (result.reward, result.info["won"]) == (0.25, True)
    env.close()


def test_examples_keep_their_roles() -> None:
    env, observation = start("examples")
    assert observation.task == ("user: What is 7 + 1?\nassistant: 8\nuser: What is 1 + 1?")
    with pytest.raises(InputError, match="has the splits train"):
        env.tasks("test")
    env.close()


def test_replies_are_observations() -> None:
    env, first_observation = start("counter", anchor="state")
    first_result = env.step("one")
    assert (first_result.observation.text, first_result.done) == ("message 1", False)
    second_result = env.step("two")
    assert second_result.observation.text == "message 2"
    anchors = {result.observation.anchor for result in (first_result, second_result)}
    assert len(anchors | {first_observation.anchor}) == 3
    # The last message of `max_turns` has no reply.
    result = env.step("<think>three")
    assert (result.reward, result.done, result.observation.text) == (
        0.25,
        True,
        "The episode is over.",
    )
    env.reset(env.tasks("train")[0])
    result = env.step("end")
    assert (result.done, result.observation.text) == (True, "bye")
    env.close()


def test_tools_are_called() -> None:
    env, observation = start("tool")
    assert "Tools:\n- add(a: integer, b: integer): Adds." in observation.task
    call = json.dumps({"tool": "add", "arguments": {"a": 1, "b": 1}})
    result = env.step(f"<think>hm</think><action>{call}</action>")
    assert (result.observation.text, result.done) == ("2", False)
    assert env.step(call).observation.text == "2"
    assert env.step("2").observation.text.startswith("That is no JSON object. Call a tool with ")
    text = env.step('{"tool": "add", "arguments": {"c": 1}}').observation.text
    assert "unexpected keyword argument" in text
    result = env.step('{"answer": "2"}')
    assert (result.reward, result.done, result.info["won"]) == (1.0, True, True)
    env.close()


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("escapes", "\x1b[2J\x00 red"),
        ("huge", "y" * 4000 + " .. [4996000 characters are left out]"),
        ("picture", "[image_url]"),
        ("empty", ""),
    ],
)
def test_a_reply_is_text_of_limited_length(way: str, text: str) -> None:
    env, _ = start(way)
    observation = env.step("hello").observation
    assert observation.text == text
    assert observation.anchor
    env.close()


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("dies", "died with status 3 (step)"),
        ("hangs", "gave no answer within 2 s (step)"),
        ("raises", "ValueError: odd"),
        ("fails", "odd"),
    ],
)
def test_an_environment_that_fails_costs_the_step(way: str, message: str) -> None:
    async def play() -> None:
        with EnvPool(
            registry.spec(NAME).build,
            {"kwargs": {"way": way}},
            workers=1,
            envs_per_worker=2,
            start_timeout_s=120,
            step_timeout_s=2,
        ) as pool:
            task = pool.tasks("train")[0]
            async with pool.episode() as environment:
                for _ in range(2):  # another episode starts after it
                    await environment.reset(task)
                    with pytest.raises((StepError, EnvError)) as caught:
                        await environment.step("hello")
                    assert message in str(caught.value)
                    assert not {"\n", "\x1b"} & set(str(caught.value))

    asyncio.run(asyncio.wait_for(play(), 300))


def test_a_start_that_fails_costs_the_episode() -> None:
    env = make("fails_at_setup")
    with pytest.raises(EnvError, match=r"ended before the first response \(.*no sandbox"):
        env.reset(env.tasks("train")[0])
    env.close()


def test_a_reward_function_that_raises_counts_nothing() -> None:
    env, _ = start("no_score")
    assert env.step("2").reward == 0.0
    env.close()


def test_random_replies_are_not_replayable(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("random") == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("not replayable: ")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("verifiers:no_such_module", {}, "cannot be loaded (ModuleNotFoundError: No module named"),
        ("verifiers:textwrap", {}, "does not expose load_environment"),
        (NAME, {"kwargs": {"way": "group"}}, "its rubric compares the rollouts of a group"),
        (NAME, {"kwargs": {"way": "raises_at_load"}}, "cannot be loaded (KeyError: 'a\\nb')"),
        (NAME, {"kwargs": {"way": "no_environment"}}, "cannot be loaded (AttributeError: 'list'"),
        (NAME, {"kwargs": {"size": 3}}, "cannot be loaded (TypeError: load_environment()"),
        (NAME, {"anchor": "words"}, "must be one of text, state"),
        (NAME, {"result_characters": 0}, "must be a whole number of at least 1"),
    ],
)
def test_bad_input_is_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        registry.make(name, **options).prepare()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_handlers_of_signals_stay() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    start("counter")[0].close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_the_prompt_is_the_conversation() -> None:
    inputs = PromptInput(
        task="Count.",
        first="",
        history=(Event("You have not answered yet.", "one"), Event("message 1", "two")),
        steps=2,
        observation="message 2",
        admissible=None,
    )
    text = registry.find_style(NAME, "full")(inputs)
    assert text == "Count.\n[you] one\n[reply] message 1\n[you] two\n[reply] message 2"


def test_no_jax_was_imported() -> None:
    assert not {"jax", "torch"} & set(sys.modules)
