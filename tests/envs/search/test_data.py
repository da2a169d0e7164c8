"""Question sets: both kinds of columns, parquet and JSON lines, and rows that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.search.questions import load_questions


def write(path: Path, rows: list) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def reference_row(question: str, answers: list[str], source: str) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": "long instructions"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": answers}},
        "extra_info": {"index": 0, "split": "train"},
        "env_kwargs": {"ground_truth": answers, "question": question, "data_source": source},
    }


def test_several_data_sets_in_both_formats_are_read_together(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = [
        reference_row("who?", ["he", "him"], "nq"),
        reference_row("where?", ["there"], "hotpotqa"),
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    write(
        tmp_path / "test_more.jsonl",
        [
            {"question": "when?", "golden_answers": ["1912"], "data_source": "nq", "id": "test_7"},
            {"question": "what?", "answer": 42},
        ],
    )
    questions = load_questions(tmp_path, "test")
    assert [(q.text, q.golden, q.source) for q in questions] == [
        ("who?", ("he", "him"), "nq"),
        ("where?", ("there",), "hotpotqa"),
        ("when?", ("1912",), "nq"),
        ("what?", ("42",), "test_more"),
    ]
    assert [q.id for q in questions] == [
        "nq/test_0",
        "hotpotqa/test_1",
        "nq/test_7",
        "test_more/test_more_1",
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "env_kwargs": {"ground_truth": ["yes", "Yes"]}},
        {"question": "q", "env_kwargs": {"ground_truth": {"target": ["yes", "Yes"]}}},
        {"question": "q", "reward_model": {"ground_truth": {"target": ["yes", "Yes"]}}},
        {"question": "q", "golden_answers": ["yes", "Yes"]},
        {"question": "q", "answers": ["yes", "Yes"]},
        {"question": "q", "answer": ["yes", "Yes"], "answers": []},
        {"env_kwargs": {"question": " q "}, "answer": ["yes", "Yes"], "question": ""},
    ],
)
def test_each_column_of_answers_will_do(tmp_path: Path, row: dict[str, Any]) -> None:
    write(tmp_path / "test.jsonl", [row])
    (question,) = load_questions(tmp_path, "test")
    assert (question.text, question.golden, question.source) == ("q", ("yes", "Yes"), "test")


def test_both_formats_give_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = [reference_row(f"q{n}?", [f"a{n}"], "nq") for n in range(3)]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write(tmp_path / "one" / "train.jsonl", rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "two" / "train.parquet")
    assert load_questions(tmp_path / "one", "train") == load_questions(tmp_path / "two", "train")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "q"}], ":1: no answers"),
        ([{"question": "q", "golden_answers": []}], "no answers"),
        ([{"question": "q", "golden_answers": ["  ", None]}], "no answers"),
        ([{"question": "q", "golden_answers": float("nan")}], "no answers"),
        ([{"question": "q", "golden_answers": [float("nan"), True]}], "no answers"),
        ([reference_row("q", ["a"], "nq"), reference_row("q", [], "nq")], ":2: no answers"),
        ([{"golden_answers": ["a"]}], "no question"),
        ([{"question": " ", "answer": "a"}], "no question"),
        (
            [
                {"question": "q", "answer": "a", "id": 1},
                {"question": "p", "answer": "a", "id": "1"},
            ],
            "occurs twice",
        ),
        ([], "have no rows"),
        (["text"], "a JSON str"),
    ],
)
def test_rows_that_cannot_be_used_are_told(tmp_path: Path, rows: list, message: str) -> None:
    write(tmp_path / "train.jsonl", rows)
    with pytest.raises(InputError) as caught:
        load_questions(tmp_path, "train")
    assert message in str(caught.value)


def test_missing_and_broken_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no questions of the split 'test'"):
        load_questions(tmp_path, "test")
    (tmp_path / "test.jsonl").write_bytes(b'{"question": "\xff"}\n')
    with pytest.raises(InputError, match="not UTF-8"):
        load_questions(tmp_path, "test")
    pytest.importorskip("pyarrow")
    (tmp_path / "train.parquet").write_bytes(b"<html>")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        load_questions(tmp_path, "train")
