"""The panels of every environment: made again, frozen and checked by the command."""

import dataclasses
import json
from pathlib import Path

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.freeze import write_panel
from gigpo_jax.env_bridge.panels import check_panel, find_panel, read_panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import panels, registry
from gigpo_jax.envs.alfworld.env import make
from gigpo_jax.envs.command_line import main
from tests.envs.alfworld.generated import small
from tests.envs.shell.sandboxes import skip_without_sandbox

__all__ = ["small"]
GAMES = ("blackjack", "ezpoints", "frozenlake", "points24", "sokoban")
COMMITTED = [
    path
    for name in registry.ENVIRONMENTS
    for path in sorted(panels.panel_folder(name).glob("*.json"))
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIGPO_JAX_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "path",
    [
        # The splits of an environment have one generator.
        pytest.param(path, marks=pytest.mark.slow if path.stem == "train" else ())
        for path in COMMITTED
    ],
    ids=lambda path: f"{path.parent.parent.name}-{path.stem}",
)
def test_the_data_of_a_committed_panel_is_made_again_bit_for_bit(
    path: Path, tmp_path: Path
) -> None:
    """When this fails, a generator changed: raise its VERSION and freeze the panels anew."""
    panel = read_panel(path)
    assert panel.name == path.stem
    if panel.environment == "shell":
        skip_without_sandbox()
    generates = registry.spec(panel.environment).generate is not None
    options = (
        {"data": registry.generate_data(panel.environment, tmp_path, **panel.made_from)}
        if generates
        else {}
    )
    tasks = panels.check_tasks(panel.environment, panel.name, options=options)
    assert {task.split for task in tasks} == {panel.split}


def test_there_are_the_panels_that_the_documentation_names() -> None:
    sizes = {
        (path.parent.parent.name, path.stem): len(read_panel(path).tasks) for path in COMMITTED
    }
    assert sizes == {
        ("alfworld", "train"): 1000,
        ("alfworld", "valid_seen"): 140,
        ("alfworld", "valid_unseen"): 134,
        ("alfworld", "small_unseen"): 128,
        ("alfworld", "tiny_unseen"): 128,
        ("alfworld", "long_unseen"): 128,
        ("example", "test"): 64,
        ("alfworld", "long_seen"): 128,
        ("alfworld", "long_tuning"): 128,
        **{(name, split): 128 for name in GAMES for split in ("test", "train")},
        ("sokoban", "test_rest"): 384,
        ("numberline", "test"): 6,
        ("numberline", "train"): 24,
        ("search", "test"): 600,
        ("search", "tiny_test"): 128,
        ("shell", "test"): 128,
        ("webshop", "test"): 500,
        ("webshop", "long_test"): 125,
        ("webshop", "train"): sizes["webshop", "train"],
    }


def test_a_data_folder_is_frozen_in_the_order_of_its_tasks(small: Path, tmp_path: Path) -> None:
    panel = panels.freeze_tasks("alfworld", "mine", "train", options={"data": str(small)})
    assert panel.ids == tuple(task.id for task in make(small).tasks("train"))
    assert not panel.made_from
    write_panel(tmp_path / "mine.json", panel)
    assert panels.check_tasks(
        "alfworld", str(tmp_path / "mine.json"), options={"data": str(small)}
    ) == tuple(make(small).tasks("train"))


def test_the_command_freezes_and_checks(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.json"
    freeze = ["freeze", "alfworld", "--name", "tiny", "--split", "valid_unseen", "--out", str(file)]
    generate = ['splits={"valid_unseen": 6}', "size=small", "receptacles=4", "objects=[3, 4]"]
    assert main([*freeze, *(word for value in generate for word in ("--generate", value))]) == 0
    assert "6 tasks, sha256" in capsys.readouterr().out
    data = registry.generate_data("alfworld", tmp_path / "again", **read_panel(file).made_from)
    check = ["check-panel", "alfworld", "--name"]
    assert main([*check, str(file), "--option", f"data={data}"]) == 0
    assert "6 tasks are those of the panel" in capsys.readouterr().out
    assert main([*check, str(file), "--option", f"data={small}"]) == 2
    assert "panel=tiny: its task" in capsys.readouterr().err
    nowhere = [*freeze[:-1], str(tmp_path / "no" / "x.json"), "--option", f"data={small}"]
    assert main(nowhere) == 2
    assert "cannot write it" in capsys.readouterr().err
    assert main([*check, "nothing", "--option", f"data={small}"]) == 2
    assert "no such file, and no panel of alfworld (those are: long_seen" in capsys.readouterr().err
    assert main(freeze) == 2
    assert "data='': no folder with games" in capsys.readouterr().err
    assert main([*freeze, "--each", "0"]) == 2
    assert "--each=0" in capsys.readouterr().err
    assert main(["freeze", "alfword", *freeze[2:]]) == 2
    assert capsys.readouterr().err.startswith("ENV='alfword': unknown; did you mean 'alfworld'?")
    for words in (["--generate", "splits=6"], ["--option", "max_steps=a"]):
        assert main([*freeze, *words]) == 2
        assert "must be of type" in capsys.readouterr().err
    assert (
        main([*freeze, "--generate", 'splits={"valid_unseen": 6}', "--generate", "size=huge"]) == 2
    )
    assert capsys.readouterr().err.startswith("--generate size='huge': no such size")


def test_a_harness_is_neither_checked_nor_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["check"], ["picture", "--out", str(tmp_path / "x.png")]):
        assert main([words[0], "tests.env_bridge.failing:HARNESS", *words[1:]]) == 2
        assert capsys.readouterr().err.startswith(
            "ENV='tests.env_bridge.failing:HARNESS': a harness plays whole"
        )
    assert main(["check", "example", "--option", "drawers=q"]) == 2
    assert capsys.readouterr().err == "--option drawers='q': must be of type int\n"


def test_one_changed_byte_in_one_game_is_found(tmp_path: Path) -> None:
    panel = find_panel("small_unseen", "alfworld", panels.panel_folder("alfworld"))
    data = Path(registry.generate_data("alfworld", tmp_path, **panel.made_from))
    task = make(data).tasks("valid_unseen")[77]
    game = json.loads((data / task.data).read_text())
    game["pddl_problem"] += " "
    (data / task.data).write_text(json.dumps(game))
    with pytest.raises(
        InputError, match=r"the content of its task .* differs; .* generated with splits="
    ) as error:
        check_panel(panel, make(data))
    assert task.id in str(error.value)


def test_another_answer_is_another_task(tmp_path: Path) -> None:
    row = {"question": "q", "golden_answers": ["a"], "data_source": "nq", "id": "1"}
    options = {}
    for name, answer in (("one", "a"), ("two", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text(json.dumps(row | {"golden_answers": [answer]}))
        options[name] = {"data": str(tmp_path / name), "url": "http://127.0.0.1:1"}
    write_panel(
        tmp_path / "p.json", panels.freeze_tasks("search", "p", "test", options=options["one"])
    )
    with pytest.raises(InputError, match="content of its task 'nq/1' differs"):
        panels.check_tasks("search", str(tmp_path / "p.json"), options=options["two"])


def test_types_take_turns() -> None:
    tasks = [
        Task(f"{kind}{n}", kind, "test")
        for kind, count in (("a", 5), ("b", 2))
        for n in range(count)
    ]
    assert panels.select_in_turn(tasks, 9) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]
    assert panels.select_in_turn(tasks, 2) == ["a0", "b0", "a2", "b1"]


def test_a_panel_of_another_environment_or_with_odd_values(small: Path, tmp_path: Path) -> None:
    panel = find_panel("small_unseen", "alfworld", panels.panel_folder("alfworld"))
    odd = tmp_path / "odd.json"
    write_panel(odd, dataclasses.replace(panel, environment="webshop"))
    with pytest.raises(InputError, match=r"a panel of webshop, not of alfworld"):
        panels.check_tasks("alfworld", str(odd), options={"data": str(small)})
    write_panel(odd, panel)
    odd.write_text(odd.read_text().replace('"made_from": {', '"made_from": [], "x": {'))
    with pytest.raises(InputError, match="made_from is no object"):
        read_panel(odd)


def test_results_of_other_programs_are_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = read_panel(panels.panel_folder("alfworld") / "valid_unseen.json")
    file = tmp_path / "results.jsonl"
    lines = [json.dumps({"id": task, "won": n < 100}) for n, task in enumerate(panel.ids)]
    score = ["score", "alfworld", "--name", "valid_unseen", "--results", str(file)]

    def run(*content: str) -> str:
        file.write_text("\n".join(content) + "\n")
        status = main(score)
        printed = capsys.readouterr()
        assert status == (2 if printed.err else 0)
        return printed.out + printed.err

    # Wilson's interval of 100 of 134, by hand: centre .7394, half of its width .0731.
    assert run(*reversed(lines)) == (
        "alfworld valid_unseen: success 100 of 134, 74.6% [66.6%, 81.2%]\n"
    )
    assert "1 of 134 tasks of the panel are missing, such as 'valid_unseen/" in run(*lines[:-1])
    assert "1 tasks are not of the panel, such as 'x'" in run(*lines, '{"id": "x", "won": true}')
    assert "line 135 repeats the task" in run(*lines, lines[0])
    for line in (
        "",
        "[" * 10_000,
        '{"id": "x"}',
        '{"id": 1, "won": true}',
        '{"id": "x", "won": 1}',
    ):
        assert "line 1 is wrong; lines {" in run(line)
    assert main([*score[:-1], str(tmp_path / "no")]) == 2
    assert "cannot be read" in capsys.readouterr().err
