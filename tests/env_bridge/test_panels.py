"""Frozen panels of any environment: written, read, checked."""

import json

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.env_bridge.panels import check_panel, find_panel, read_panel
from gigpo_jax.envs import registry
from gigpo_jax.envs.panels import panel_folder
from tests.file_limit import largest_file


def test_a_panel_comes_back_as_it_was_written(tmp_path):
    env = registry.make("example", games=5)
    panel = freeze_panel("five", "example", env, "test", made_from={"games": 5})
    write_panel(tmp_path / "five.json", panel)
    stored_panel = read_panel(tmp_path / "five.json")
    assert (stored_panel, stored_panel.sha256) == (panel, panel.sha256)
    assert stored_panel.ids == tuple(f"test/{number:04d}" for number in range(5))
    assert check_panel(stored_panel, env) == tuple(env.tasks("test"))


def test_a_panel_that_cannot_be_written_leaves_the_old_file(tmp_path):
    env = registry.make("example", games=200)
    path = tmp_path / "panel.json"
    write_panel(path, freeze_panel("five", "example", env, "test", ids=["test/0001"]))
    with largest_file(1000), pytest.raises(InputError, match="cannot write it"):
        write_panel(path, freeze_panel("all", "example", env, "test"))
    assert read_panel(path).ids == ("test/0001",)
    assert [child.name for child in tmp_path.iterdir()] == ["panel.json"]


def test_a_panel_keeps_its_own_order_and_depends_on_it():
    env = registry.make("example", games=5)
    ids = ["test/0003", "test/0001"]
    panel = freeze_panel("two", "example", env, "test", ids=ids)
    assert [task.id for task in check_panel(panel, env)] == ids
    assert panel.sha256 != freeze_panel("two", "example", env, "test", ids=ids[::-1]).sha256
    with pytest.raises(InputError, match="no task 'test/0009'"):
        freeze_panel("two", "example", env, "test", ids=["test/0009"])
    with pytest.raises(InputError, match="ids: 'test/0003' stands there twice"):
        freeze_panel("two", "example", env, "test", ids=["test/0003", *ids])
    with pytest.raises(InputError, match=r"config\.env\.split='test': no tasks"):
        freeze_panel("two", "example", env, "test", ids=[])


def test_tasks_that_are_missing_are_named():
    panel = freeze_panel("five", "example", registry.make("example", games=5), "test")
    with pytest.raises(
        InputError,
        match="panel=five: its task 'test/0004' is not in the data; use the data",
    ):
        check_panel(panel, registry.make("example", games=4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("test/0002", "test/0007"), "was edited"),
        (lambda text: text[:100], "not a panel"),
        (lambda text: json.dumps({"name": "five"}), "not a panel"),
        (lambda text: text.replace('"test/0002", ""', '"test/0002"'), "not a panel"),
        (lambda text: "[]", "not a panel"),
    ],
)
def test_a_damaged_file_is_refused_with_its_path(change, message, tmp_path):
    path = tmp_path / "five.json"
    write_panel(path, freeze_panel("five", "example", registry.make("example", games=5), "test"))
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=message) as caught:
        read_panel(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot read it"):
        read_panel(tmp_path / "none.json")


def test_panels_are_found_by_name_or_file_and_only_for_their_environment(tmp_path):
    panel = find_panel("tiny_unseen", "alfworld", panel_folder("alfworld"))
    write_panel(tmp_path / "copy.json", panel)
    assert find_panel(str(tmp_path / "copy.json"), "alfworld", tmp_path / "none") == panel
    with pytest.raises(InputError, match="a panel of alfworld, not of webshop"):
        find_panel(str(tmp_path / "copy.json"), "webshop", tmp_path / "none")
    with pytest.raises(InputError, match=r"no panel of alfworld \(those are: .*tiny_unseen"):
        find_panel("tiny", "alfworld", panel_folder("alfworld"))
