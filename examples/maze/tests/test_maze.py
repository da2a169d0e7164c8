"""Tests of the maze: its promises, its expert and its prompt."""

from maze.env import Maze, Walker
from maze.prompt import short

from gigpo_jax.env_bridge.checker import check_environment
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.rollout.demonstrations import play_expert


def test_the_environment_keeps_its_promises() -> None:
    check_environment(
        "maze.env:Maze",
        {"size": 3, "games": 4},
        split="train",
        make_expert=Walker,
        tasks=2,
        steps=20,
    )


def test_the_expert_always_finds_the_exit() -> None:
    env = Maze(size=4, games=20)
    for task in env.tasks("test"):
        assert play_expert(env, Walker(0), task, 40).won


def test_prompts_leave_out_what_is_missing() -> None:
    inputs = PromptInput("row 0 column 1", "", (), 0, "row 2 column 2", ("go north", "go west"))
    assert short(inputs) == "exit row 0 column 1 now row 2 column 2 can north west"
