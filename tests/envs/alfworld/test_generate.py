"""The generator: its files, the same on every machine; every game can be won."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.alfworld import Game
from gigpo_jax.envs.alfworld.data import package
from gigpo_jax.envs.alfworld.data.generate import ensure_games
from gigpo_jax.envs.alfworld.data.one_split import generate_games
from gigpo_jax.envs.alfworld.data.package import read_package
from gigpo_jax.envs.alfworld.phrases import parse_phrase
from gigpo_jax.envs.alfworld.tasks import MANIFEST, TASK_TYPES, extract_task
from gigpo_jax.envs.command_line import main
from tests.envs.alfworld.generated import COUNT, full, small

__all__ = ["full", "small"]


def game_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("game.tw-pddl"))


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def scene_of(path: Path) -> int:
    return read(path.with_name("traj_data.json"))["scene"]["scene_num"]


@pytest.mark.parametrize("size", ["small", "full"])
@pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
def test_every_walkthrough_wins_at_its_last_step_and_not_before(split, size, request):
    paths = game_files(request.getfixturevalue(size) / split)
    assert len(paths) == COUNT
    for path in paths:
        game = Game(path)
        content = read(path)
        step = game.reset()
        assert not step.won
        assert content["solvable"] is True
        for number, command in enumerate(content["walkthrough"], 1):
            assert command in step.admissible, (path, command)
            step = game.step(command)
            assert step.won == (number == len(content["walkthrough"])), (path, number)


def test_walkthroughs_are_shortest(tmp_path):
    """Breadth-first search finds no shorter way (rooms of 3 to 4 receptacles)."""
    folder = generate_games(
        tmp_path, "train", 18, seed=1, size="small", receptacles=(3, 4), objects=(2, 3)
    )
    for path in game_files(folder):
        assert len(read(path)["walkthrough"]) == shortest(Game(path)), path


def shortest(game: Game) -> int:
    first = game.reset()
    frontier = [(first.admissible, ())]
    visited = set()
    for depth in range(1, 12):
        following = []
        for admissible, commands in frontier:
            for command in admissible:
                if command.startswith(("examine", "look", "help", "inventory", "slice")):
                    continue
                game.reset()
                for earlier in commands:
                    game.step(earlier)
                step = game.step(command)
                if step.won:
                    return depth
                # which doors are open and what was done to things is not in the list, so it goes
                # into the key
                history = tuple(
                    sorted(word for word in (*commands, command) if not word.startswith("go to"))
                )
                if (key := (step.admissible, history)) not in visited:
                    visited.add(key)
                    following.append((step.admissible, (*commands, command)))
        frontier = following
    raise AssertionError("no way found")


def test_folders_and_files_are_laid_out_like_the_genuine_ones(full):
    for path in game_files(full / "train"):
        split, task, trial = path.relative_to(full).parts[:3]
        kind, thing, movable, place, scene = task.split("-")
        traj = read(path.with_name("traj_data.json"))
        game = read(path)
        assert list(game) == ["pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"]
        assert split == "train"
        assert trial.startswith("trial_")
        assert movable == "None"
        assert traj["task_type"] == kind
        params = traj["pddl_params"]
        assert (params["object_target"], params["parent_target"] or params["toggle_target"]) == (
            thing,
            place,
        )
        assert (params["mrecep_target"], params["object_sliced"]) == ("", False)
        assert traj["scene"]["scene_num"] == int(scene)
        goal = parse_phrase(extract_task(Game(path).reset().feedback))
        assert goal is not None
        assert (goal.type, goal.object) == (kind, thing.lower())
        assert goal.receptacle + goal.lamp == place.lower()


def test_task_types_take_turns_and_unseen_rooms_are_never_trained_on(small, full):
    tables = read_package()
    for data in (small, full):
        scenes = {
            split.name: {scene_of(path) for path in game_files(split)} for split in data.iterdir()
        }
        assert scenes["train"] | scenes["valid_seen"] <= set(tables.train_scenes)
        assert scenes["valid_unseen"] <= set(tables.test_scenes)
        assert not set(tables.train_scenes) & set(tables.test_scenes)
        for split in data.iterdir():
            kinds = Counter(path.parent.parent.name.split("-")[0] for path in game_files(split))
            assert kinds == dict.fromkeys(TASK_TYPES, COUNT // 6)
    problems = [read(path)["pddl_problem"] for path in game_files(full)]
    assert len(set(problems)) == len(problems) == 3 * COUNT
    train, seen_games = (
        {path.read_bytes() for path in game_files(full / split)}
        for split in ("train", "valid_seen")
    )
    assert not train & seen_games


def test_small_rooms_are_small(small, tmp_path):
    def sizes(folder: Path) -> set[tuple[int, int]]:
        problems = [
            read(path)["pddl_problem"].partition("(:init")[0] for path in game_files(folder)
        ]
        return {
            (problem.count(" - receptacle\n"), problem.count(" - object\n")) for problem in problems
        }

    assert all(4 <= places <= 6 and 3 <= things <= 5 for places, things in sizes(small / "train"))
    tiny = generate_games(tmp_path, "train", 12, size="small", receptacles=4, objects=3)
    assert sizes(tiny) == {(4, 3)}
    first_folder = generate_games(
        tmp_path / "one", "train", 6, task_types=["pick_and_place_simple"], size="small"
    )
    assert {path.parent.parent.name.split("-")[0] for path in game_files(first_folder)} == {
        "pick_and_place_simple"
    }


def test_the_same_arguments_give_the_same_bytes_in_another_process_without_importing_alfworld(
    tmp_path, full
):
    script = (
        "import sys; from gigpo_jax.envs.alfworld.data.one_split import generate_games\n"
        f"generate_games({str(tmp_path)!r}, 'train', {COUNT}, seed=3)\n"
        "packages = {name.split('.')[0] for name in sys.modules}\n"
        "assert not packages & {'alfworld', 'textworld', 'jax'}\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    original = full / "train"
    copy = tmp_path / "train"
    assert {
        path.relative_to(original): path.read_bytes()
        for path in original.rglob("*")
        if path.is_file()
    } == {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()}


def test_a_game_does_not_depend_on_how_many_there_are_but_on_seed_and_split(full, tmp_path):
    fewer = generate_games(tmp_path / "fewer", "train", 5, seed=3)
    for path in game_files(fewer):
        assert path.read_bytes() == (full / "train" / path.relative_to(fewer)).read_bytes()
    other_folder = generate_games(tmp_path / "other", "train", 5, seed=4)
    assert not {path.read_bytes() for path in game_files(other_folder)} & {
        path.read_bytes() for path in game_files(fewer)
    }


def test_complete_games_are_reused_and_others_are_never_mixed_in(tmp_path):
    folder = generate_games(tmp_path, "train", 6, size="small")
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert generate_games(tmp_path, "train", 6, size="small") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == stamps
    with pytest.raises(InputError, match="holds games made with games=6, not 7"):
        generate_games(tmp_path, "train", 7, size="small")
    with pytest.raises(InputError, match="holds games made with seed=0, not 1"):
        generate_games(tmp_path, "train", 6, seed=1, size="small")
    (folder / MANIFEST).unlink()
    with pytest.raises(InputError, match="files that are not generated games"):
        generate_games(tmp_path, "train", 6, size="small")


@pytest.mark.parametrize(
    "damage", [lambda game: game.write_bytes(game.read_bytes()[:-9]), lambda game: game.unlink()]
)
def test_a_damaged_split_is_never_taken_for_a_whole_one(damage, tmp_path):
    folder = generate_games(tmp_path, "train", 2, size="small")
    content = game_files(folder)[1].read_bytes()
    damage(game_files(folder)[1])
    with pytest.raises(
        InputError, match=r"missing or damaged; delete this folder and run this again"
    ) as error:
        generate_games(tmp_path, "train", 2, size="small")
    assert str(folder) in str(error.value)
    shutil.rmtree(folder)
    assert game_files(generate_games(tmp_path, "train", 2, size="small"))[1].read_bytes() == content


def test_a_generation_that_is_broken_off_leaves_nothing(tmp_path):
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_games(tmp_path, "train", 6, size="small", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_several_processes_may_ensure_the_same_games_at_once(tmp_path):
    script = (
        "from gigpo_jax.envs.alfworld.data.generate import ensure_games\n"
        f"print(ensure_games({str(tmp_path)!r}, {{'train': 60, 'valid_unseen': 6}}, size='small'))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = {process.communicate(timeout=120)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert outputs == {str(ensure_games(tmp_path, {"train": 60, "valid_unseen": 6}, size="small"))}
    data = Path(outputs.pop())
    assert sorted(path.name for path in data.iterdir()) == ["train", "valid_unseen"]
    assert (len(game_files(data / "train")), len(game_files(data / "valid_unseen"))) == (60, 6)
    assert ensure_games(tmp_path, {"train": 60, "valid_unseen": 7}, size="small") != data


def test_fifty_games_a_second(tmp_path):
    generate_games(tmp_path / "warm", "train", 6)  # reads the package
    start = time.process_time()
    generate_games(tmp_path, "train", 100)
    assert 100 / (time.process_time() - start) >= 50


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"split": "test"},
            "split='test': no such split; choose one of train, valid_seen, valid_unseen",
        ),
        ({"games": 0}, "games=0"),
        ({"size": "medium"}, "size='medium': no such size; choose one of full, small"),
        ({"receptacles": 2}, "receptacles=2: must be a number"),
        ({"objects": (5, 3)}, r"objects=\(5, 3\)"),
        ({"task_types": ["juggle"]}, "task_types='juggle'"),
        ({"task_types": []}, "one or more"),
        ({"out": ""}, "out='': no data folder; name the one to write"),
        ({"out": "$NO_SUCH_VARIABLE/games"}, "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_wrong_arguments_are_named(changed, message, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        generate_games(**{"out": tmp_path, "split": "train", "games": 1, **changed})
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_games_of_no_split_are_refused(tmp_path):
    with pytest.raises(InputError, match="not a number of games for each split"):
        ensure_games(tmp_path, {})


def test_a_missing_package_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(package.importlib.util, "find_spec", lambda name: None)
    package.read_package.cache_clear()
    try:
        status = main(
            ["alfworld", "generate", "--out", str(tmp_path), "--split", "train", "--games", "1"]
        )
    finally:
        package.read_package.cache_clear()
    assert status == 2
    assert "pip install --no-deps alfworld==0.4.2" in capsys.readouterr().err


def test_the_command_writes_games_and_refuses_others_with_status_two(tmp_path, capsys):
    line = [
        "alfworld",
        "generate",
        "--out",
        str(tmp_path),
        "--split",
        "valid_unseen",
        "--games",
        "2",
        "--size",
        "small",
        "--receptacles",
        "4,5",
    ]
    assert main(line) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "valid_unseen")
    assert len(game_files(tmp_path)) == 2
    assert main([*line, "--seed", "9"]) == 2
    message = capsys.readouterr().err
    assert message.strip().endswith("choose another folder or delete this one")
    assert message.count("\n") == 1, "the bar of what is not done is not shown"


@pytest.mark.parametrize(
    "wrong", ["--receptacles 4,5,6", "--objects x", "--size medium", "--games many", "--nothing 1"]
)
def test_wrong_flags_end_with_status_two_and_are_quoted(wrong, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(
            [
                "alfworld",
                "generate",
                "--out",
                str(tmp_path / "out"),
                "--split",
                "train",
                "--games",
                "1",
                *wrong.split(),
            ]
        )
    assert exit_info.value.code == 2
    assert wrong.split()[1] in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_home_and_variables_in_the_folder_to_write_to(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert generate_games("~/games", "train", 1, size="small") == tmp_path / "games" / "train"


@pytest.mark.slow
def test_the_official_engine_plays_one_generated_game_of_each_type_to_its_end(small):
    official = pytest.importorskip("gigpo_jax.envs.alfworld.engine.official")
    pytest.importorskip("textworld")
    for path in game_files(small / "valid_unseen")[3::8]:
        game = official.OfficialGame(path)
        try:
            game.reset()
            assert [game.step(command).won for command in read(path)["walkthrough"]][-1], path
        finally:
            game.close()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_official_engine_and_its_expert_play_many_generated_games(small, full, seed):
    """The hand-coded expert may lose a game; that is its own affair. It must be able to play."""
    official = pytest.importorskip("gigpo_jax.envs.alfworld.engine.official")
    won = 0
    paths = [path for data in (small, full) for path in game_files(data)][seed % 3 :: 24]
    for path in paths:
        game = official.OfficialGame(path, expert=True)
        try:
            game.reset()
            for _ in range(80):
                step = game.step(game.expert_plan[0])
                if step.done:
                    break
            won += step.won
        finally:
            game.close()
    assert won >= 0.6 * len(paths), (won, len(paths))
