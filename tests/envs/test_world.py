"""Worlds and their episodes, as other trainers play them."""

from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.panels import find_panel
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs import registry
from gigpo_jax.envs.panels import panel_folder
from gigpo_jax.envs.world import open_world
from tests.envs.pages import PAGE, code

pytestmark = pytest.mark.usefixtures("world_cache")


def test_a_panel_of_the_package_is_generated_and_won() -> None:
    world = open_world("alfworld", panel="tiny_unseen")
    assert (
        tuple(task.id for task in world.tasks)
        == find_panel("tiny_unseen", "alfworld", panel_folder("alfworld")).ids
    )
    player = world.play()
    expert = registry.make_expert("alfworld", 0)
    step = player.reset(world.task(world.tasks[5].id))
    while not step.done:
        previous_step = step
        action = expert.act(step.observation)
        step = player.respond(f"<think>so</think><action>{action}</action>")
    assert (step.reward, step.terminated, step.truncated, step.won, step.score) == (
        10.0,
        True,
        False,
        True,
        1.0,
    )
    assert f"You did: {action}" in step.prompt
    assert previous_step.observation.text in step.prompt


def test_prompts_have_the_task_a_window_of_history_and_the_actions() -> None:
    world = open_world("example", history=1)
    player = world.play()
    player.reset(world.tasks[0])
    player.act("open drawer 1")
    step = player.respond("<think>no</think><action>Close drawer 1</action>")
    assert step.valid
    assert step.prompt.split("\n") == [
        "You look for a treasure in a row of drawers.",
        "Your task: find the coin",
        "Steps taken so far: 2.",
        "Your last 1 step:",
        "[step 2] You saw: You open the drawer 1. In it, you see nothing.",
        "[step 2] You did: close drawer 1",
        "Now, at step 3, you see: You close the drawer 1.",
        "What you can do now:",
        *(f"- open drawer {number}" for number in (1, 2, 3, 4)),
        "First reason about what you know and what brings you closer to the goal, between <think> "
        "and </think>. Then choose one action from the list and give it, and nothing else, between <action> and </action>.",
    ]
    assert not player.respond("open drawer 2").valid
    # A new episode shows nothing of the one before.
    assert player.reset(world.tasks[0]).prompt == world.play().reset(world.tasks[0]).prompt


def test_an_episode_ends_after_its_last_action_also_where_the_environment_has_no_limit() -> None:
    world = open_world("example")
    player = world.play()
    assert world.max_steps == 12
    with pytest.raises(EnvError, match="call reset first"):
        player.act("open drawer 1")
    player.reset(world.tasks[0])
    steps = [player.act("open drawer 9") for _ in range(12)]
    assert [step.truncated for step in steps] == [False] * 11 + [True]
    assert not any(step.terminated for step in steps)
    with pytest.raises(EnvError, match="after the end"):
        player.act("open drawer 1")
    short = open_world("sokoban", split="test", observation="text", max_steps=2)
    player = short.play()
    player.reset(short.task(3))
    assert [player.act("up").truncated for _ in range(2)] == [False, True]


def test_a_victory_with_the_last_action_ends_by_the_rules() -> None:
    expert = registry.make_expert("sokoban", 0)
    world = open_world("sokoban", panel="test")
    player = world.play()
    actions = 0
    step = player.reset(world.tasks[0])
    while not step.done:
        step = player.act(expert.act(step.observation))
        actions = actions + 1
    assert step.won
    exact = open_world("sokoban", split="test", max_steps=actions)
    player = exact.play()
    step = player.reset(exact.task(world.tasks[0].id))
    while not step.done:
        step = player.act(expert.act(step.observation))
    assert (step.terminated, step.truncated) == (True, False)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("sokobam", {}, r"^name='sokobam': unknown; did you mean 'sokoban'\?"),
        (
            "sokoban",
            {"panel": "tset"},
            r"^panel='tset': .* no panel of sokoban \(those are: test, ",
        ),
        ("sokoban", {"panel": "test", "split": "test"}, r"give one of them"),
        ("sokoban", {"panel": "test", "size": 8}, r"the content of its task .* differs"),
        (
            "sokoban",
            {"split": "tset"},
            r"^split='tset': this environment has the splits train, test",
        ),
        ("sokoban", {"size": 99}, r"^options\.size=99: must be a whole number from 5 to 10"),
        ("sokoban", {"sise": 6}, r"nearest: size"),
        (
            "sokoban",
            {"prompt": "long"},
            r"no such style of sokoban; choose one of chat, compact, full",
        ),
        ("sokoban", {"prompt": 3}, r"^prompt=3: must be of type str"),
        ("example", {"drawers": "q"}, r"^options\.drawers='q': must be of type int"),
        (
            "tests.env_bridge.failing:HARNESS",
            {},
            r"^name='.*:HARNESS': a harness plays whole episodes by itself",
        ),
        ("sokoban", {"history": -1}, r"^history=-1: must be a whole number of at least 0"),
        ("alfworld", {"split": "train"}, r"no folder with games"),
        ("sokoban", {"panel": 7}, r"^panel=7: must be of type str"),
    ],
)
def test_bad_input_is_one_line_with_the_fix(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_world(name, **arguments)
    assert "\n" not in str(caught.value)


def test_a_task_that_is_not_there_is_refused_with_the_nearest() -> None:
    world = open_world("example", split="test")
    with pytest.raises(
        InputError, match=r"task='test/001': test of example has no such task; nearest: test/00"
    ):
        world.task("test/001")
    for index in (64, -1, True, 1.5):
        with pytest.raises(InputError, match="must be a whole number from 0 to 63"):
            world.task(index)  # type: ignore[arg-type]


def test_the_code_of_the_page_plays_an_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(PAGE.parents[1] / "worlds"))
    exec(code("Installation"), {})
    assert capsys.readouterr().out.endswith(" False True\n")


def test_the_class_of_the_page_plays_an_episode() -> None:
    names: dict[str, Any] = {}
    exec(code("Which trainer takes which interface"), names)
    environment = names["Sokoban"]()
    expert = registry.make_expert("sokoban", 0)
    text = environment.reset(task=3, prompt="p")
    assert text.startswith("Task: push every box onto a target\n")
    while not environment.step.done:
        text = environment.act(expert.act(environment.step.observation))
    assert environment.step.won
    assert environment.get_reward() > 9
    assert environment.act("up") == "The episode is over."
