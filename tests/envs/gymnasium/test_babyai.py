"""BabyAI as text: the real MiniGrid, its bot, and the panels."""

from pathlib import Path
from typing import Any

import pytest

from configs.babyai_tiny import LEVELS, get_config
from configs.babyai_tiny_sft import get_config as get_imitation_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.panels import read_panel
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs import registry
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.gymnasium.babyai import show_view
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.rollout.demonstrations import play_expert, response_text

pytest.importorskip("minigrid")

BABYAI = "gigpo_jax/envs/gymnasium/panels/babyai_"
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")


def name_level(level: str) -> str:
    return f"gymnasium:minigrid:BabyAI-{level}-v0"


def say_steps(count: int, direction: str) -> str:
    return f"{count} step{'s' * int(count > 1)} {direction}"


def describe_view(world: Any) -> list[str]:
    """The words of BabyAI-Text by the grid's own coordinates."""
    sentences = []
    if world.carrying is not None:
        sentences.append(f"You carry a {world.carrying.color} {world.carrying.type}")
    _, is_visible = world.gen_obs_grid()
    for direction, step in (
        ("forward", world.dir_vec),
        ("left", -world.right_vec),
        ("right", world.right_vec),
    ):
        for distance in range(1, 7):
            cell = world.agent_pos + distance * step
            place = world.relative_coords(*cell)
            if place is None or not is_visible[place]:
                break
            thing = world.grid.get(*cell)
            if thing is not None:
                if thing.type == "wall":
                    sentences.append(f"You see a wall {say_steps(distance, direction)}")
                break
    things = {}
    for column in range(world.grid.width):
        for row in range(world.grid.height):
            thing = world.grid.get(column, row)
            place = world.relative_coords(column, row)
            if thing is None or thing.type == "wall" or place is None or not is_visible[place]:
                continue
            places = []
            right = place[0] - 3
            if right:
                places.append(say_steps(abs(right), "right" if right > 0 else "left"))
            if place[1] < 6:
                places.append(say_steps(6 - place[1], "forward"))
            name = f"a {thing.color} {thing.type}"
            if thing.type == "door":
                state = (
                    "an open" if thing.is_open else "a locked" if thing.is_locked else "a closed"
                )
                name = f"{state} {thing.color} door"
            things[place] = f"You see {name} {' and '.join(places)}"
    return sentences + [things[place] for place in sorted(things)]


@pytest.mark.parametrize("level", ["GoToLocal", "UnlockLocal", "PickupLoc"])
def test_observations_have_the_words_of_babyai_text(level: str) -> None:
    env = registry.make(name_level(level))
    seen = ""
    for number, task in enumerate(env.tasks("test")[:4]):
        expert = registry.make_expert(name_level(level), number, random_fraction=0.5)
        expert.begin(task)
        observation = env.reset(task)
        assert observation.admissible == ACTIONS
        for _ in range(30):
            assert observation.text.splitlines() == (
                describe_view(env.world) or ["You see nothing"]
            )
            assert observation.task == env.world.mission
            seen += observation.text + "\n"
            result = env.step(expert.act(observation))
            observation = result.observation
            if result.done:
                break
        seen += observation.text + "\n"
    words = {
        "GoToLocal": ("You see a wall 1 step left\n", " steps left and ", " steps right\n"),
        "UnlockLocal": ("You see a locked ", "You see an open ", "You carry a "),
        "PickupLoc": ("You see a wall 2 steps forward\n", "You carry a "),
    }[level]
    assert all(word in seen for word in words)


def test_done_is_no_action_of_babyai() -> None:
    env = registry.make(name_level("GoToObj"))
    env.reset(env.tasks("train")[0])
    for action in ("done", ""):
        assert env.step(action).observation.text.startswith("There is no such action.\n")
    assert env.world.step_count == 0
    minigrid = registry.make("gymnasium:minigrid:MiniGrid-Empty-5x5-v0")
    assert "done" in minigrid.reset(minigrid.tasks("train")[0]).admissible


@pytest.mark.parametrize("level", ["GoToLocal", "PickupDist", "UnlockLocal"])
def test_the_bot_wins_and_random_actions_make_it_worse(level: str) -> None:
    def count_won(random_fraction: float) -> int:
        won = 0
        for number, task in enumerate(env.tasks("train")[:12]):
            expert = registry.make_expert(
                name_level(level), number, random_fraction=random_fraction
            )
            won += play_expert(env, expert, task, 16 if random_fraction else 64).won
        return won

    env = registry.make(name_level(level))
    assert count_won(0.0) == 12
    assert count_won(0.85) < 9


def test_the_bot_plays_in_the_level_of_the_options() -> None:
    options = {"kwargs": {"room_size": 12, "num_dists": 1}}
    env = registry.make(name_level("GoToLocal"), **options)
    tasks = env.tasks("train")[:10]
    for task in tasks:
        expert = registry.make_expert(name_level("GoToLocal"), 0, **options)
        assert play_expert(env, expert, task, 30).won


def test_experts_with_the_same_seed_act_alike() -> None:
    env = registry.make(name_level("PickupDist"))
    task = env.tasks("train")[3]
    walks = []
    for seed in (5, 5, 6):
        expert = registry.make_expert(name_level("PickupDist"), seed, random_fraction=0.9)
        walks.append([event.action for _, event in play_expert(env, expert, task, 12).steps])
    assert walks[0] == walks[1] != walks[2]


def test_only_babyai_has_a_bot() -> None:
    with pytest.raises(InputError, match="no expert to imitate"):
        registry.make_expert("gymnasium:minigrid:MiniGrid-Empty-5x5-v0", 0)
    with pytest.raises(InputError, match="random_fraction"):
        registry.make_expert(name_level("GoToObj"), 0, random_fraction=1.5)


def test_a_tiny_prompt_keeps_what_differs() -> None:
    text = (
        "You carry a red key\nYou see a wall 1 step left\nYou see an open grey door 2 steps right"
    )
    inputs = PromptInput("go to the grey door", "", (), 0, text, None)
    prompt = "go to grey door now carry red key wall 1 left open grey door 2 right"
    assert show_view(inputs) == prompt


def test_the_tiny_policy_can_read_levels_and_say_actions() -> None:
    config = get_config()
    tokenizer = load_tokenizer(Path(config.model.path))
    unknown_id = tokenizer.encode("ß")[-1]
    for level in LEVELS.values():
        env = registry.make(f"gymnasium:minigrid:{level}")
        for number, task in enumerate(env.tasks("test")[:12]):
            expert = registry.make_expert(
                f"gymnasium:minigrid:{level}", number, random_fraction=0.6
            )
            for observation, event in play_expert(env, expert, task, 16).steps:
                inputs = PromptInput(observation.task, "", (), 0, observation.text, None)
                tokens = tokenizer.encode(show_view(inputs))
                assert len(tokens) + 2 <= config.sampling.max_prompt_tokens
                assert unknown_id not in tokens
                assert tokenizer.decode(tokens) == show_view(inputs)
                response = tokenizer.encode(response_text(event.action))
                assert len(response) < config.sampling.max_response_tokens
                assert parse_tagged(tokenizer.decode(response)) == Response(event.action, True)


def test_the_warm_start_imitates_a_good_and_then_a_worse_bot() -> None:
    stages = [get_imitation_config(stage) for stage in "12"]
    for label in LEVELS:
        fractions = [stage.env.mix[label].demonstrator.random_fraction for stage in stages]
        assert fractions[0] < fractions[1]


@pytest.mark.parametrize(
    ("panel", "level"),
    [
        ("goto", "GoToLocal"),
        ("pickup", "PickupLoc"),
        ("goto_tiny", "GoToLocalS6N3"),
        ("pickup_tiny", "PickupDist"),
    ],
)
def test_panels_are_levels_that_training_never_plays(panel: str, level: str) -> None:
    frozen_panel = read_panel(Path(f"{BABYAI}{panel}.json"))
    assert frozen_panel.environment == name_level(level)
    env = registry.make(name_level(level))
    seeds = {task.id: int(task.data) for split in ("train", "test") for task in env.tasks(split)}
    training_seeds = {int(task.data) for task in env.tasks("train")}
    panel_seeds = {seeds[task_id] for task_id in frozen_panel.ids}
    assert len(panel_seeds) == 128
    assert not panel_seeds & training_seeds
    for task in env.tasks("test")[:8]:
        digests = dict(frozen_panel.tasks)
        assert digests.get(task.id, env.digest(task)[:16]) == env.digest(task)[:16]


def test_levels_are_replayable_and_silent(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", name_level("PickupDist"), "--tasks", "1"]) == 0
    captured = capfd.readouterr()
    assert captured.out.count("holds: ") == captured.out.count("\n") == 6
    assert captured.err == ""
