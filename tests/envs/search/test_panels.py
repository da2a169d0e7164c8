"""The committed panel is that of the world that the code makes; other data is told apart."""

import json
from pathlib import Path

import pytest

from gigpo_jax.env_bridge.panels import check_panel, read_panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.search.data.generate import question_row
from gigpo_jax.envs.search.data.world import make_world
from gigpo_jax.envs.search.env import SearchEnv
from gigpo_jax.envs.search.panels import FOLDER, _NoRetriever, chosen, freeze, main
from gigpo_jax.errors import InputError


@pytest.mark.parametrize(("name", "count"), [("test", 600), ("tiny_test", 128)])
def test_a_committed_panel_is_that_of_the_generated_world(tmp_path: Path, name: str, count: int) -> None:
    panel = read_panel(FOLDER / f"{name}.json")
    made = dict(panel.made_from)
    world = make_world(made.pop("seed"), **made)
    rows = [json.dumps(question_row(question)) for question in world.questions if question.split == "test"]
    (tmp_path / "test.jsonl").write_text("\n".join(rows))
    env = SearchEnv(str(tmp_path), _NoRetriever(), topk=1, max_steps=1, document_chars=1)
    tasks = check_panel(panel, env)
    assert [task.type for task in tasks[:4]] == ["one_hop", "two_hop", "one_hop", "two_hop"]
    assert len(tasks) == count


def test_another_answer_is_another_task(tmp_path: Path) -> None:
    row = {"question": "q", "golden_answers": ["a"], "data_source": "nq", "id": "1"}
    for name, answer in (("one", "a"), ("two", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text(json.dumps(row | {"golden_answers": [answer]}))
    panel = freeze("p", "test", str(tmp_path / "one"), 0, {})
    other = SearchEnv(str(tmp_path / "two"), _NoRetriever(), topk=1, max_steps=1, document_chars=1)
    with pytest.raises(InputError, match="content of its task 'nq/1' differs"):
        check_panel(panel, other)
    assert main(["--name", "p", "--data", str(tmp_path), "--out", str(tmp_path / "p.json")]) == 2


def test_data_sets_take_turns() -> None:
    tasks = [Task(f"{kind}{n}", kind, "test") for kind, count in (("a", 5), ("b", 2)) for n in range(count)]
    assert chosen(tasks, 0) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]
    assert chosen(tasks, 2) == ["a0", "b0", "a2", "b1"]
