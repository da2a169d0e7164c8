"""Gymnasium's environments as ours: the real package, and environments as strangers write them."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.gymnasium.env import NO_SUCH_ACTION
from tests.envs.futures import count_equal_anchors, read_outcome
from tests.processes import patience

STRANGE = "gymnasium:tests.envs.gymnasium.odd_worlds:strange/"
WORLDS = "tests.envs.gymnasium.odd_worlds:"
READY = ("FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1")
MINIGRID = ("MiniGrid-DoorKey-6x6-v0", "BabyAI-GoToObj-v0", "BabyAI-UnlockLocal-v0")


def make(name: str, **options: Any) -> Any:
    return registry.make(f"gymnasium:{name}", **options)


def play(env: Any, task: Task, actions: Sequence[str]) -> list[Any]:
    env.reset(task)
    return [env.step(action) for action in actions]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*READY, *(f"minigrid:{name}" for name in MINIGRID)])
@pytest.mark.parametrize("anchor", ["text", "state"])
def test_ready_environments_keep_all_promises(
    name: str, anchor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.startswith("minigrid:"):
        pytest.importorskip("minigrid")
    flags = ["--tasks", "3", "--option", f"anchor={anchor}"]
    assert main(["check", f"gymnasium:{name}", *flags]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count("holds: ") == 6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FrozenLake-v1", {"kwargs": {"is_slippery": False}}),
        ("Taxi-v4", {}),
        ("CliffWalking-v1", {}),
        ("minigrid:MiniGrid-DoorKey-6x6-v0", {}),
        pytest.param("minigrid:BabyAI-GoToObj-v0", {}, marks=pytest.mark.slow),
        pytest.param("minigrid:BabyAI-GoToLocalS6N3-v0", {}, marks=pytest.mark.slow),
        pytest.param("minigrid:BabyAI-PickupDist-v0", {}, marks=pytest.mark.slow),
    ],
)
def test_equal_states_have_equal_futures(name: str, options: dict[str, Any]) -> None:
    read = read_outcome
    if name.startswith("minigrid:"):
        pytest.importorskip("minigrid")
        # The reward at the goal falls with the number of steps before it.
        read = read_success
    env = make(name, anchor="state", **options)
    list_actions = partial(list_names, env)
    pairs = 0
    for number, task in enumerate(env.tasks("train")[:2]):
        pairs += count_equal_anchors(
            env, task, episodes=3, steps=10, seed=number, list_actions=list_actions, read=read
        )
    env.close()
    assert pairs > 5


def test_a_state_of_babyai_has_the_progress_of_the_mission() -> None:
    pytest.importorskip("minigrid")
    env = make("minigrid:BabyAI-GoToSeqS5R2-v0", anchor="state")
    rng = np.random.default_rng(0)
    reached = 0
    for task in env.tasks("train")[:12]:
        env.reset(task)
        progress: dict[str, bool] = {}
        for _ in range(60):
            result = env.step(str(rng.choice(["turn left", "turn right", "go forward"])))
            if result.done:
                break
            mission = env._env.unwrapped.instrs
            is_halfway = "success" in [getattr(mission, name, "") for name in ("a_done", "b_done")]
            # The same cells before and after the first half are two states.
            assert progress.setdefault(result.observation.anchor, is_halfway) == is_halfway
        reached += True in progress.values()
    env.close()
    assert reached >= 2


def test_a_mission_may_mean_walls() -> None:
    """ "A grey object" matches the walls, which BabyAI gives no place."""
    pytest.importorskip("minigrid")
    env = make("minigrid:BabyAI-PickupDist-v0", anchor="state")
    task = next(t for t in env.tasks("train") if "grey object" in env.reset(t).task)
    first = env.reset(task).anchor
    assert env.step("turn left").observation.anchor != first
    assert env.step("turn right").observation.anchor == first
    env.close()


def read_success(result: StepResult) -> tuple[bool, bool, bool]:
    """Whether a step is rewarded, the last one, and won."""
    return result.reward > 0.0, result.done, result.info["won"]


def list_names(env: Any, observation: Observation) -> Sequence[str]:
    """All actions of an environment."""
    del observation
    return [name for name in env._renderer.actions if name]


@pytest.mark.slow
@pytest.mark.parametrize("name", READY)
def test_an_episode_is_that_of_gymnasium_with_the_same_seed(name: str) -> None:
    env = make(name)
    theirs = gymnasium.make(name)
    rng = np.random.default_rng(0)
    for task in [*env.tasks("train")[:20], *env.tasks("test")[:20]]:
        env.reset(task)
        theirs.reset(seed=int(task.data))
        done = False
        while not done:
            number = int(rng.integers(theirs.action_space.n))
            result = env.step(env._renderer.actions[number])
            _, reward, terminated, truncated, _ = theirs.step(number)
            done = terminated or truncated or result.done
            assert (result.reward, result.done) == (reward, terminated or truncated)
    env.close()


def test_the_splits_share_no_seed() -> None:
    env = make("FrozenLake-v1")
    seeds = {split: {task.data for task in env.tasks(split)} for split in ("train", "test")}
    assert (len(seeds["train"]), len(seeds["test"])) == (16384, 512)
    assert not seeds["train"] & seeds["test"]
    with pytest.raises(InputError, match=r"config.env.split='dev': .* train, test"):
        env.tasks("dev")


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"])
def test_maps_are_those_that_gymnasium_draws(name: str) -> None:
    """Their `ansi` picture marks the agent's cell with a colour."""
    env = make(name)
    theirs = gymnasium.make(name, render_mode="ansi")
    rng = np.random.default_rng(1)
    for task in env.tasks("train")[:5]:
        observation = env.reset(task)
        theirs.reset(seed=int(task.data))
        for _ in range(15):
            assert read_text(name, observation.text) == read_ansi(name, theirs.render())
            number = int(rng.integers(theirs.action_space.n))
            result = env.step(env._renderer.actions[number])
            observation = result.observation
            theirs.step(number)
            if result.done:
                break


def read_text(name: str, text: str) -> list[str]:
    """Rows with letters of Gymnasium's `ansi` picture, the agent's cell as @."""
    rows = text.splitlines()[:7] if name == "Taxi-v4" else text.replace(" ", "").splitlines()
    agents = {"FrozenLake-v1": "PX√", "Taxi-v4": "T", "CliffWalking-v1": "P"}[name]
    return ["".join("@" if letter in agents else letter for letter in row) for row in rows]


def read_ansi(name: str, picture: str) -> list[str]:
    if name == "CliffWalking-v1":
        rows = picture.replace(" ", "").replace("x", "@").replace("T", "G").split()
    else:
        marked = re.sub(r"\x1b\[[0-9;]*(?:41|42|43)m.\x1b\[0m", "@", picture)
        rows = re.sub(r"\x1b\[[0-9;]*m", "", marked).splitlines()
        rows = [row for row in rows if row and not row.startswith("  (")]
    if name == "FrozenLake-v1":
        rows = [row.translate(str.maketrans("SFH", "__O")) for row in rows]
    return rows


def test_a_goal_that_is_reached_is_won() -> None:
    dry = make("FrozenLake-v1", kwargs={"is_slippery": False})
    walk = ("down", "down", "right", "right", "down", "right")
    results = play(dry, dry.tasks("train")[0], walk)
    assert [result.reward for result in results] == [0, 0, 0, 0, 0, 1]
    assert results[-1].done
    assert results[-1].info == {"won": True, "score": 1.0}
    assert results[-1].observation.text.endswith("O _ _ √")
    hole = play(dry, dry.tasks("train")[0], ("down", "right"))[-1]
    assert (hole.done, hole.info["won"]) == (True, False)

    cliff = make("CliffWalking-v1")
    fall, *walk_results = play(
        cliff, cliff.tasks("train")[0], ("right", "up", *["right"] * 11, "down")
    )
    assert (fall.reward, fall.done, fall.info["won"]) == (-100, False, False)
    assert sum(result.reward for result in walk_results) == -13
    assert walk_results[-1].info == {"won": True, "score": 1.0}


def test_a_won_hand_is_one_with_a_positive_reward() -> None:
    env = make("Blackjack-v1")
    results = [play(env, task, ("stick",))[0] for task in env.tasks("train")[:50]]
    assert {result.reward for result in results} == {-1.0, 0.0, 1.0}
    assert all(result.info["won"] == (result.reward > 0) for result in results)


def test_a_mask_of_actions_says_which_are_admissible() -> None:
    env = make("Taxi-v4")
    observation = env.reset(env.tasks("test")[3])
    assert "T is the taxi" in observation.task
    assert observation.admissible == ("south", "north")  # a wall on either side, nobody to pick up
    assert env.step("drop off").reward == -10  # it is an action all the same


def test_a_text_that_is_no_action_changes_nothing() -> None:
    env = make("Taxi-v4")
    task = env.tasks("train")[0]
    first_observation = env.reset(task)
    result = env.step("fly")
    assert result.observation.text == NO_SUCH_ACTION + first_observation.text
    assert result.observation.anchor == first_observation.anchor
    assert (result.reward, result.done) == (0.0, False)
    assert env.step(" NORTH ").reward == -1


def test_an_episode_ends_at_the_time_limit_and_is_not_won() -> None:
    env = make("CliffWalking-v1", time_limit=3)
    results = play(env, env.tasks("train")[0], ("up", "up", "up", "up"))
    assert [result.done for result in results] == [False, False, True, True]
    assert results[2].info == {"won": False, "score": 0.0}
    registered = make("FrozenLake-v1", kwargs={"is_slippery": False})
    results = play(registered, registered.tasks("train")[0], ["left"] * 100)
    assert [result.done for result in results] == [False] * 99 + [True]


def test_the_user_gives_renderer_actions_and_task() -> None:
    name = STRANGE.removeprefix("gymnasium:") + "Corridor-v0"
    env = make(name, renderer=f"{WORLDS}CORRIDOR", anchor="state")
    observation = env.reset(env.tasks("train")[0])
    start = int(observation.anchor.removeprefix("at "))
    assert observation == Observation(
        f"cell {start} of 5", f"at {start}", ("back", "On"), "reach cell 4"
    )
    for _ in range(4 - start):
        result = env.step("on")
    assert (result.observation.text, result.info["won"]) == ("cell 4 of 5", True)

    plain = make(
        name, renderer=f"{WORLDS}show_cell", actions=["west", "east"], task="go east", won_above=2.0
    )
    observation = plain.reset(plain.tasks("train")[0])
    assert (observation.anchor, observation.task) == (f"cell {start} of 5", "go east")
    assert observation.admissible == ("west", "east")


def test_a_text_environment_needs_no_renderer() -> None:
    env = make(STRANGE.removeprefix("gymnasium:") + "Words-v0", admissible="choices")
    observation = env.reset(env.tasks("train")[0])
    word = observation.text.removeprefix("Say ")
    assert observation.admissible == ("Ada", "Bob")
    assert env.step("a text above ten characters").observation.text.startswith(NO_SUCH_ACTION)
    assert env.step(word.lower()).info["won"] is False
    response = registry.spec(STRANGE + "Words-v0").parse(f"<think></think><action>{word}</action>")
    assert env.step(response.action).info["won"] is True


def test_our_own_world_comes_back_through_gymnasium() -> None:
    name = "gigpo_jax.envs.gymnasium.worlds:gigpo/example-v0"
    env = make(name, admissible="admissible", kwargs={"drawers": 5})
    expert = registry.make_expert("example", 0)
    observation = env.reset(env.tasks("test")[0])
    done = False
    while not done:
        result = env.step(expert.act(observation))
        observation = result.observation
        done = result.done
    assert (result.reward, result.info["won"]) == (10.0, True)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gymnasium:Taxi-v3", [], "not registered, nearest: Taxi-v4"),
        ("gymnasium:", [], "not registered; name it gymnasium:MODULE:ID"),
        ("gymnasium:no_such_package:Maze-v0", [], "cannot import no_such_package (No module named"),
        ("gymnasium:Pendulum-v1", [], "its actions are Box(-2.0, 2.0, (1,), float32)"),
        ("gymnasium:LunarLander-v3", [], "cannot be made (Box2D is not installed"),
        ("gymnasium:CartPole-v1", [], "--option actions=(): the environment has 2 actions"),
        ("gymnasium:CartPole-v1", ['actions=["left","Left"]'], "the environment has 2 actions"),
        (
            "gymnasium:CartPole-v1",
            ['actions=["left","right"]'],
            "--option renderer: the environment gives a ndarray, not a text",
        ),
        ("gymnasium:Taxi-v4", [f"renderer={WORLDS}show_number"], "show_number gives a int, not"),
        ("gymnasium:Taxi-v4", [f"renderer={WORLDS}show"], "--option renderer: cannot load"),
        (
            "gymnasium:Taxi-v4",
            ["renderer=show"],
            "renderer='show': no reference; name it module:NAME",
        ),
        ("gymnasium:Taxi-v4", [f"renderer={WORLDS}WORDS"], "has no attribute 'WORDS'"),
        ("gymnasium:Taxi-v4", ["renderer=math:pi"], "a float, neither a function nor a Renderer"),
        ("gymnasium:Taxi-v4", ["anchor=all"], "--option anchor='all': must be one of text, state"),
        ("gymnasium:CartPole-v1", ["anchor=state"], "the renderer tells no state"),
        ("gymnasium:Taxi-v4", ["time_limit=0"], "must be a whole number of at least 1"),
        ("gymnasium:Taxi-v4", ['kwargs={"rain":1}'], "gymnasium.make cannot use them"),
        ("gymnasium:Taxi-v4", ["size=3"], "does not take the options ['size']"),
        (STRANGE + "Words-v0", ["admissible=moves"], "info has only choices"),
    ],
)
def test_bad_input_is_one_line(
    name: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [flag for option in options for flag in ("--option", option)]
    assert main(["check", name, *flags]) == 2
    error_text = capsys.readouterr().err
    assert message in error_text
    assert error_text.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("HangsInStep", "gave no answer within 0.5 s (step)"),
        ("Raises", r"OSError: the server\x1b[31m is gone (odd_worlds.py:"),
        pytest.param(
            "Huge", "6,000,029 characters'; allowed: at most 1,000,000", marks=pytest.mark.slow
        ),
        pytest.param("OddReward", "malformed result: reward is 'many'", marks=pytest.mark.slow),
    ],
)
def test_a_broken_environment_costs_its_step(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{STRANGE}{name}-v0", "--tasks", "1", "--limit", "0.5"]) == 1
    error_text = capsys.readouterr().err
    assert message in error_text
    assert error_text.count("\n") == 1
    assert "\x1b" not in error_text


def test_an_environment_that_ends_its_process_costs_the_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", f"{STRANGE}Dies-v0", "--tasks", "1", "--limit", "20"]) == 1
    assert "died with status 3 (step)" in capsys.readouterr().err.splitlines()[-1]


def test_control_characters_of_an_environment_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{STRANGE}Escapes-v0", "--option", "admissible=choices"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_an_environment_with_randomness_of_its_own_is_not_replayable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", f"{STRANGE}OwnDice-v0", "--tasks", "2"]) == 1
    promise, verdict = capsys.readouterr().err.splitlines()
    assert "when it is played again in the same object" in promise
    assert verdict.startswith("not replayable: ")


@pytest.mark.parametrize("name", ["HangsWhenMade", "HangsInReset"])
def test_an_environment_that_cannot_start_stops_at_the_limit(name: str) -> None:
    name = f"{STRANGE}{name}-v0"
    start_s = time.monotonic()
    assert len(registry.make(name).tasks("train")) == 16384  # lists tasks without opening it
    with pytest.raises(EnvError, match="gave no answer within 3 s"):
        EnvPool(registry.spec(name).build, workers=1, envs_per_worker=1, start_timeout_s=3)
    assert time.monotonic() - start_s < patience(30)


def test_a_panel_names_an_environment_that_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "gymnasium:FrozenLake-v1"
    assert main(["check-panel", name, "--name", "frozenlake_test"]) == 0
    flags = ["--option", 'kwargs={"map_name":"8x8"}']
    assert main(["check-panel", name, "--name", "frozenlake_test", *flags]) == 2
    assert "the content of its task" in capsys.readouterr().err
    path = tmp_path / "taxi.json"
    freeze = ["freeze", "gymnasium:Taxi-v4", "--name", "taxi", "--split", "test", "--each", "30"]
    assert main([*freeze, "--out", str(path)]) == 0
    digests = [digest for _, digest in json.loads(path.read_text())["tasks"]]
    assert len(set(digests)) > 20  # seeds give other starts
    assert main(["check-panel", "gymnasium:Taxi-v4", "--name", str(path)]) == 0


def test_without_gymnasium_the_command_names_the_package() -> None:
    program = (
        "import sys; sys.modules['gymnasium'] = None; from gigpo_jax.envs.command_line import main; "
        "sys.exit(main(['freeze', 'gymnasium:Taxi-v4', '--name=x', '--split=test', '--out=x.json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert f"needs the package gymnasium; {install_command('gymnasium')}" in done.stderr
