"""The frozen panels: generated games are made again bit for bit, and other games are refused."""

import dataclasses
import json
from pathlib import Path

import pytest

from gigpo_jax.env_bridge.panels import find_panel, read_panel, write_panel
from gigpo_jax.envs.alfworld.env import make
from gigpo_jax.envs.alfworld.panels import FOLDER, freeze_data, load_panel, main, make_panel_games
from gigpo_jax.errors import InputError
from tests.envs.alfworld.generated import small

__all__ = ["small"]


@pytest.mark.parametrize(
    ("name", "split", "games"),
    [("train", "train", 1000), ("valid_seen", "valid_seen", 140), ("valid_unseen", "valid_unseen", 134)],
)
def test_the_games_of_a_panel_are_made_again_bit_for_bit(name, split, games, tmp_path):
    """Also guards the generator: when this fails, raise generate.VERSION and freeze the panels anew."""
    data = make_panel_games(name, tmp_path)
    tasks = load_panel(name, make(data))
    assert len(tasks) == games
    assert {task.split for task in tasks} == {split}
    assert [task.id for task in tasks] == sorted(task.id for task in tasks)


def test_the_small_panel_has_rooms_that_are_not_trained_on(tmp_path):
    tasks = load_panel("small_unseen", make(make_panel_games("small_unseen", tmp_path)))
    assert len(tasks) >= 128
    assert {task.split for task in tasks} == {"valid_unseen"}


def test_all_panels_of_the_package_are_intact():
    names = {path.stem for path in FOLDER.glob("*.json")}
    assert set(names) >= {"train", "valid_seen", "valid_unseen", "small_unseen"}
    for name in names:
        assert find_panel(name, "alfworld", FOLDER).name == name


def test_a_data_folder_is_frozen_sorted_by_path_and_changed_games_are_refused(small, tmp_path):
    panel = freeze_data("mine", "train", str(small))
    write_panel(tmp_path / "mine.json", panel)
    assert panel.ids == tuple(task.id for task in make(small).tasks("train"))
    assert not panel.made_from
    assert load_panel(str(tmp_path / "mine.json"), make(small)) == make(small).tasks("train")
    with pytest.raises(InputError, match="downloaded games; get them with alfworld-download"):
        make_panel_games(str(tmp_path / "mine.json"), tmp_path)


def test_the_command_freezes_and_checks(small, tmp_path, capsys):
    line = "freeze --name tiny --split valid_unseen --games 6 --size small --receptacles 4 --objects 3,4 --out"
    assert main([*line.split(), str(tmp_path / "tiny.json")]) == 0
    assert "6 games, sha256" in capsys.readouterr().out
    data = make_panel_games(str(tmp_path / "tiny.json"), tmp_path)
    assert main(["check", "--name", str(tmp_path / "tiny.json"), "--data", str(data)]) == 0
    assert main(["check", "--name", str(tmp_path / "tiny.json"), "--data", str(small)]) == 2
    assert "panel=tiny: its task" in capsys.readouterr().err
    nowhere = f"freeze --name x --split train --data {small} --out {tmp_path / 'no' / 'x.json'}"
    assert main(nowhere.split()) == 2
    assert "cannot write it" in capsys.readouterr().err
    assert main(["check", "--name", "nothing", "--data", str(small)]) == 2
    assert "no such file, and no panel of alfworld (those are: small_unseen" in capsys.readouterr().err
    assert main(["freeze", "--name", "x", "--split", "train", "--out", str(tmp_path / "x.json")]) == 2
    assert "--games N" in capsys.readouterr().err


def test_one_changed_byte_in_one_game_is_found(tmp_path):
    data = make_panel_games("small_unseen", tmp_path)
    task = make(data).tasks("valid_unseen")[77]
    game = json.loads((data / task.data).read_text())
    game["pddl_problem"] += " "
    (data / task.data).write_text(json.dumps(game))
    with pytest.raises(
        InputError, match=r"the content of its task .* differs; the panel's data was generated with games=128"
    ) as told:
        load_panel("small_unseen", make(data))
    assert task.id in str(told.value)


def test_a_panel_of_another_environment_or_made_from_odd_values(small, tmp_path):
    def written(**changed):
        panel = dataclasses.replace(find_panel("small_unseen", "alfworld", FOLDER), **changed)
        write_panel(tmp_path / "odd.json", panel)
        return str(tmp_path / "odd.json")

    with pytest.raises(InputError, match=r"a panel of webshop, not of alfworld"):
        load_panel(written(environment="webshop"), make(small))
    for made_from, says in (({"games": 5, "foo": 1}, "'foo', which is no option"), ({"seed": 5}, "games=0")):
        with pytest.raises(InputError, match=says):
            make_panel_games(written(made_from=made_from), tmp_path)
    odd = written()
    Path(odd).write_text(Path(odd).read_text().replace('"made_from": {', '"made_from": [], "x": {'))
    with pytest.raises(InputError, match="made_from is no object"):
        read_panel(odd)
