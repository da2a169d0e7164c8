"""The environment: tasks, skipped folders, episodes, anchors, messages for bad input."""

import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.alfworld import Game
from gigpo_jax.envs.alfworld.env import AlfworldEnv, make
from gigpo_jax.envs.alfworld.episode_anchors import Anchor
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES
from tests.envs.alfworld.generated import full, small
from tests.envs.futures import count_equal_anchors

__all__ = ["full", "small"]


def walkthrough(data: Path, task: Task) -> list[str]:
    return json.loads((data / task.data).read_text(encoding="utf-8"))["walkthrough"]


def test_tasks_are_sorted_by_path_with_their_types(small):
    env = registry.make("alfworld", data=str(small))
    tasks = env.tasks("train")
    assert [task.id for task in tasks] == sorted(task.id for task in tasks)
    assert [task.id for task in tasks] == sorted(
        path.parent.relative_to(small).as_posix() for path in small.glob("train/*/*/game.tw-pddl")
    )
    for task in tasks:
        assert (
            task.type == json.loads((small / task.id / "traj_data.json").read_text())["task_type"]
        )
        assert task.split == "train"
    assert {task.type for task in tasks} == set(TASK_TYPES)


def test_an_episode_is_the_game_with_the_published_reward(small):
    env = make(small)
    for task in env.tasks("valid_seen")[::5]:
        game = Game(small / task.data)
        observation = env.reset(task)
        step = game.reset()
        assert observation.text == observation.anchor == step.feedback
        assert step.feedback.endswith(f"\n\nYour task is to: {observation.task}.")
        for command in walkthrough(small, task):
            step = game.step(command)
            result = env.step(command)
            assert (result.observation.text, result.observation.admissible) == (
                step.feedback,
                step.admissible,
            )
            assert result.observation.task == observation.task
            assert (result.done, result.info["won"], result.reward) == (
                step.won,
                step.won,
                10.0 * step.won,
            )
            assert result.info["score"] == float(step.won)
        again = env.step("look")
        assert (again.observation, again.reward, again.done) == (result.observation, 0.0, True)
        assert again.info["won"]


def test_an_episode_ends_after_max_steps_without_reward(small):
    env = make(small, max_steps=3)
    task = env.tasks("train")[0]
    for _ in range(2):
        env.reset(task)
        results = [env.step("look") for _ in range(5)]
        assert [result.done for result in results] == [False, False, True, True, True]
        assert not any(result.reward for result in results)
        assert results[2].info == {"won": False, "score": 0.0}


def test_regret_counts_the_commands_that_an_action_wastes(small):
    env = make(small, regret=True)
    task = env.tasks("train")[0]
    env.reset(task)
    commands = walkthrough(small, task)
    away = next(
        c
        for c in env.step("look").observation.admissible
        if c.startswith("go to") and c != commands[0]
    )
    regrets = [env.step(command).info["regret"] for command in (away, *commands)]
    assert regrets[0] > 0
    assert regrets[1:] == [0.0] * len(commands)
    # The first command of a later episode is compared with its own start.
    other = env.tasks("train")[1]
    env.reset(other)
    assert env.step(walkthrough(small, other)[0]).info["regret"] == 0.0
    env.reset(task)
    assert env.step("look").info["regret"] == 1.0
    plain = make(small)
    plain.reset(task)
    assert "regret" not in plain.step("look").info


def test_episodes_do_not_influence_one_another(small):
    """The same task and actions give the same texts, whatever was played before."""
    env = make(small)
    second_env = make(small)
    tasks = env.tasks("train")[:6]
    second_env.tasks("train")
    alone = [
        [env.reset(task).text, *(env.step(c).observation for c in walkthrough(small, task))]
        for task in tasks
    ]
    for task in tasks:
        second_env.reset(task)
        env.reset(task)
        for command in walkthrough(small, task)[:-1]:
            second_env.step(command)
    for task, expected in reversed(list(zip(tasks, alone))):
        second_env.reset(task)
        observations = [
            env.reset(task).text,
            *(env.step(c).observation for c in walkthrough(small, task)),
        ]
        assert observations == expected


@pytest.fixture(scope="module")
def playing(small) -> AlfworldEnv:
    env = make(small, max_steps=10**9)
    env.reset(env.tasks("train")[0])
    return env


@settings(max_examples=100, deadline=1000)
@given(
    action=st.one_of(
        st.text(), st.sampled_from(["go to", "take  ", "LOOK", "look\n"]), st.binary().map(repr)
    )
)
def test_no_text_makes_a_step_raise(playing, action):
    result = playing.step(action)
    assert result.observation.text
    assert (result.reward, result.done) == (0.0, False)


def fake_game(folder: Path, **game) -> Path:
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(
        json.dumps({"pddl_domain": "", "grammar": '"solvable": true', **game})
    )
    (folder / "traj_data.json").write_text(json.dumps({"task_type": "look_at_obj_in_light"}))
    return folder


def nested_goal(game: Path, depth: int) -> dict:
    """A game's content with a goal of many brackets."""
    content = json.loads(game.read_text())
    problem = content["pddl_problem"].partition("(:goal")[0]
    return {**content, "pddl_problem": f"{problem}(:goal {'(and ' * depth}{')' * depth}))"}


def test_what_is_skipped_is_reported_with_the_reason(small, tmp_path, caplog):
    good = make(small).tasks("train")[0]
    shutil.copytree(small / good.id, tmp_path / good.id)
    root = tmp_path / "train"
    fake_game(
        root / "pick_and_place_with_movable_recep-Apple-Bowl-Desk-1" / "trial_1", solvable=True
    )
    fake_game(root / "pick_and_place_simple-AppleSliced-None-Desk-1" / "trial_1", solvable=True)
    fake_game(
        root / "pick_and_place_simple-Apple-None-Desk-1" / "trial_1",
        solvable=False,
        walkthrough=None,
    )
    fake_game(root / "pick_and_place_simple-Apple-None-Desk-1" / "trial_2", solvable=None)
    fake_game(root / "pick_and_place_simple-Apple-None-Desk-1" / "trial_3")
    (
        fake_game(root / "pick_and_place_simple-Mug-None-Desk-1" / "trial_1") / "game.tw-pddl"
    ).unlink()
    (fake_game(root / "another-task" / "trial_1", solvable=True) / "traj_data.json").write_text(
        "{}"
    )
    fake_game(root / "named_by_hand" / "trial_1", solvable=True, walkthrough=["look"] * 9)
    env = make(tmp_path)
    with caplog.at_level(logging.INFO):
        tasks = env.tasks("train")
    assert [(task.id, task.type) for task in tasks] == sorted(
        [(good.id, good.type), ("train/named_by_hand/trial_1", "look_at_obj_in_light")]
    )
    assert [record.getMessage().partition("/train: ")[2] for record in caplog.records] == [
        "1 folders skipped: Sliced in its path: the games do not support that",
        "1 folders skipped: its task type is none of the six",
        "1 folders skipped: marked unsolvable",
        "1 folders skipped: movable in its path: the games do not support that",
        "1 folders skipped: no game.tw-pddl in it",
        "2 folders skipped: not marked as solvable",
    ]


def test_listing_does_not_parse_the_games(small, tmp_path):
    source = make(small).tasks("train")[0]
    text = (small / source.data).read_bytes()
    folders = [
        tmp_path / "train" / f"pick_and_place_simple-Mug-None-Desk-{index}" / "trial_0"
        for index in range(400)
    ]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_bytes(text)

    def seconds(call: Callable[[], object]) -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    listing = min(seconds(lambda: make(tmp_path).tasks("train")) for _ in range(3))
    parsing = min(
        seconds(lambda: [json.loads((f / "game.tw-pddl").read_bytes()) for f in folders])
        for _ in range(3)
    )
    assert len(make(tmp_path).tasks("train")) == 400
    assert listing < parsing


def test_environment_variables_and_home_in_the_data_path(small, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(small.parent))
    assert make(f"$ALFWORLD_DATA/{small.name}").data == small


def test_bad_input_is_one_line_with_the_path_and_the_fix(small, tmp_path):
    env = make(small)
    task = env.tasks("train")[0]
    broken = tmp_path / "cut"
    shutil.copytree(small / task.id, broken / task.id)
    game = broken / task.data
    game.write_bytes(game.read_bytes()[:20000])
    (tmp_path / "empty" / "train").mkdir(parents=True)
    edited = tmp_path / "edited"
    shutil.copytree(small / task.id, edited / task.id)
    (edited / task.data).write_text('{"solvable": true}')
    edit = make(edited)
    unended = tmp_path / "unended"
    shutil.copytree(small / task.id, unended / task.id)
    (unended / task.data).write_bytes((small / task.data).read_bytes()[:-1])
    deep = fake_game(tmp_path / "deep", **nested_goal(small / task.data, 5000)) / "game.tw-pddl"
    cases = [
        (
            lambda: make(tmp_path / "none"),
            (str(tmp_path / "none"), "envs alfworld generate --out", "alfworld-download"),
        ),
        (
            lambda: env.tasks("valid"),
            ("split='valid'", "train, valid_seen, valid_unseen", "--split train"),
        ),
        (lambda: edit.tasks("valid_seen"), ("split='valid_seen'", "--split valid_seen")),
        (
            lambda: make(tmp_path / "empty").tasks("train"),
            (str(tmp_path / "empty" / "train"), "holds no game"),
        ),
        (lambda: make(broken).tasks("train"), (str(game), "not a complete game file")),
        (lambda: edit.reset(edit.tasks("train")[0]), (str(edited / task.data),)),
        (
            lambda: env.reset(Task("train/pick_up", "", "train")),
            ("'train/pick_up'", "tasks('train')"),
        ),
        (lambda: make(small, engine="fast"), ("engine='fast'", "native, official")),
        (lambda: make(), ("data=''", "envs alfworld generate --out")),
        (lambda: make(small / "train").tasks("train"), (f"use data={small}",)),
        (lambda: make(None), ("data=None", "envs alfworld generate --out")),
        (lambda: make("$NO_SUCH_VARIABLE/json_2.1.1"), ("NO_SUCH_VARIABLE is not set",)),
        (lambda: make(small / "train").tasks("train"), ("split='train'", " and ", " more)")),
        (lambda: env.tasks("../train"), ("split='../train'", str(small))),
        (
            lambda: make(unended).tasks("train"),
            (str(unended / task.data), "not a complete game file"),
        ),
        (lambda: Game(deep), (str(deep), "too deep")),
        (lambda: make(small, max_steps=True), ("max_steps=True",)),
        (lambda: make(small, max_steps=0), ("max_steps=0",)),
    ]
    for call, expected_words in cases:
        with pytest.raises(InputError) as error:
            call()
        assert "\n" not in str(error.value)
        for word in expected_words:
            assert word in str(error.value), str(error.value)


def test_a_step_before_the_first_reset_is_an_environment_error(small):
    env = make(small)
    with pytest.raises(EnvError, match="step before reset"):
        env.step("look")
    env.reset(env.tasks("train")[0])
    env.close()
    env.close()
    with pytest.raises(EnvError, match="step before reset"):
        env.step("look")


def test_anchors_collapse_spaces_add_the_inventory_and_ignore_what_did_nothing():
    texts = [
        "You arrive at desk 1.  On the desk 1,\nyou see a pen 1.",
        "You pick up the pen 1 from the desk 1.",
        "Nothing happens.",
        "You move the pen 1 to the desk 1.",
    ]

    def anchors(spec: str) -> list[str]:
        anchor = Anchor(spec)
        return [anchor.reset("Start."), *(anchor.step(text) for text in texts)]

    assert anchors("feedback") == ["Start.", *texts]
    assert anchors("feedback+spaces")[1] == "You arrive at desk 1. On the desk 1, you see a pen 1."
    assert anchors("feedback+inventory") == [
        "Start.\ncarrying: nothing",
        f"{texts[0]}\ncarrying: nothing",
        f"{texts[1]}\ncarrying: pen 1",
        "Nothing happens.\ncarrying: pen 1",
        f"{texts[3]}\ncarrying: nothing",
    ]
    assert anchors("feedback+sticky")[2:4] == [texts[1], texts[1]]
    assert anchors("feedback+sticky+inventory+spaces")[3] == f"{texts[1]}\ncarrying: pen 1"


def test_anchors_reach_the_observations_and_start_anew_with_each_episode(small):
    env = make(small, anchor="feedback+inventory")
    task = next(task for task in env.tasks("train") if task.type == "pick_and_place_simple")
    commands = walkthrough(small, task)
    first = env.reset(task).anchor
    anchors = [env.step(command).observation.anchor for command in commands[:-1]]
    assert any(not anchor.endswith("carrying: nothing") for anchor in anchors)
    assert env.reset(task).anchor == first
    assert first.endswith("carrying: nothing")


def test_the_official_engine_says_the_same_through_the_same_interface(small):
    pytest.importorskip("textworld")
    native = make(small)
    official = make(small, engine="official")
    task = next(
        task for task in native.tasks("train") if task.type == "pick_heat_then_place_in_recep"
    )
    assert official.reset(task) == native.reset(task)
    for command in ["fly away", *walkthrough(small, task)]:
        ours = native.step(command)
        theirs = official.step(command)
        assert ours == theirs
    assert ours.info["won"]
    official.close()


@pytest.mark.parametrize("size", ["small", "full"])
def test_equal_states_have_equal_futures(size, request):
    env = make(request.getfixturevalue(size), anchor="state", max_steps=100)
    pairs = 0
    for number, task in enumerate(env.tasks("train")[:6]):
        pairs += count_equal_anchors(env, task, episodes=6, steps=25, seed=number)
    assert pairs > 50


def test_a_belief_is_what_was_seen_whatever_the_way(small):
    env = make(small, anchor="belief")
    task = env.tasks("train")[0]
    commands = [c for c in env.reset(task).admissible if c.startswith("go to ")]
    first, second = commands[:2]

    def follow(*actions):
        env.reset(task)
        return [env.step(action).observation.anchor for action in actions]

    visits = follow(first, second, first)
    # The same place, knowing more; nothing happens, and nothing is known that was not before.
    assert len({*visits}) == 3
    assert visits[0].splitlines()[0] == visits[2].splitlines()[0]
    assert follow(first, "fly away", "look")[1:] == [visits[0], visits[0]]
    # The other way round it is the same knowledge at the same place.
    assert follow(second, first)[-1] == visits[2]
    walk = follow(*walkthrough(small, task))
    thing = next(c for c in walkthrough(small, task) if c.startswith("take ")).split(" from ")[0]
    assert any(f"holding {thing.removeprefix('take ')}" in anchor for anchor in walk)


def test_a_state_tells_the_place_and_the_changes(small):
    env = make(small, anchor="state")
    task = next(task for task in env.tasks("train") if task.type == "pick_and_place_simple")
    assert env.reset(task).anchor == "at the start"
    assert env.step("fly away").observation.anchor == "at the start"
    commands = walkthrough(small, task)
    anchors = [env.step(command).observation.anchor for command in commands]
    take = next(command for command in commands if command.startswith("take "))
    thing = take.removeprefix("take ").partition(" from ")[0]
    assert f"{thing}" in anchors[commands.index(take)]
    assert f"in {thing} {commands[-1].partition(' to ')[2]}" in anchors[-1]
    with pytest.raises(InputError, match="only the native engine knows the state"):
        make(small, anchor="state", engine="official")
