"""Reads question sets: parquet or JSON lines, in the reference columns or plain ones, of several data sets.

A row has the question (`env_kwargs.question` or `question`), the golden answers (`env_kwargs.ground_truth`,
`reward_model.ground_truth.target`, `golden_answers`, `answers` or `answer`; a text or a list of texts), the data set
(`data_source`, or the file's name) and, if it has them, an `id` and the titles of its gold passages
(`supporting_facts.title` or `metadata.supporting_facts.title`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigpo_jax.envs.search.retrieval.corpus import read_lines
from gigpo_jax.envs.search.retrieval.retriever import INSTALL
from gigpo_jax.errors import InputError

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_ANSWERS = (
    ("env_kwargs", "ground_truth"),
    ("reward_model", "ground_truth", "target"),
    ("golden_answers",),
    ("answers",),
    ("answer",),
)
_QUESTIONS = (("env_kwargs", "question"), ("question",))
_SOURCES = (("data_source",), ("env_kwargs", "data_source"))
_PASSAGES = (("supporting_facts", "title"), ("metadata", "supporting_facts", "title"))


@dataclass(frozen=True)
class Question:
    """A question and its answers."""

    id: str  # unique in its split
    text: str  # the question
    golden: tuple[str, ...]  # the accepted answers
    source: str  # its data set; results are reported for each
    split: str  # "train" or "test"
    passages: tuple[str, ...] = ()  # titles of the gold passages, those that the answer needs; () if unknown


def question_files(folder: Path, split: str) -> list[Path]:
    found = sorted(folder.glob(f"{split}*")) if folder.is_dir() else []
    files = [path for path in found if path.name.endswith(SUFFIXES)]
    if not files:
        raise InputError(
            f"config.env.options.data={str(folder)!r}: no questions of the split {split!r} there; a folder with "
            f"{split}.jsonl, {split}.parquet or several files that begin with {split} is needed"
        )
    return files


def load_questions(folder: Path, split: str) -> tuple[Question, ...]:
    """All questions of a split, in the order of files and rows.

    Raises:
      InputError: a file or a row that cannot be used, with its place, or an id that occurs twice.
    """
    questions: dict[str, Question] = {}
    for path in question_files(folder, split):
        for number, (where, row) in enumerate(_rows(path)):
            question = _question(row, where, number, path, split)
            if question.id in questions:
                raise InputError(f"{where}: the id {question.id!r} occurs twice; ids must be unique")
            questions[question.id] = question
    if not questions:
        raise InputError(f"config.env.options.data={str(folder)!r}: the files of the split {split!r} have no rows")
    return tuple(questions.values())


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return _parquet_rows(path) if path.suffix == ".parquet" else read_lines(path)


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as err:
        raise InputError(f"{path}: parquet needs pyarrow ({err}); {INSTALL}, or use JSON lines") from err
    try:
        number = 0
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as err:
        raise InputError(f"{path}: cannot be read as parquet ({' '.join(str(err).split())})") from err


def _at(row: Any, *keys: str) -> Any:
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _question(row: dict[str, Any], where: str, number: int, path: Path, split: str) -> Question:
    texts = (_at(row, *keys) for keys in _QUESTIONS)
    text = next((text.strip() for text in texts if isinstance(text, str) and text.strip()), None)
    if text is None:
        raise InputError(f"{where}: no question; a row needs `question` or `env_kwargs.question`, a text")
    golden = next(filter(None, (_golden(_at(row, *keys)) for keys in _ANSWERS)), ())
    if not golden:
        raise InputError(f"{where}: no answers; a row needs `golden_answers` (or a reference column), texts")
    sources = (_at(row, *keys) for keys in _SOURCES)
    source = next((source for source in sources if isinstance(source, str) and source), path.name.partition(".")[0])
    name = row.get("id")
    if not isinstance(name, (str, int)) or isinstance(name, bool) or name == "":
        name = f"{path.name.partition('.')[0]}_{number}"
    prefix = "" if str(name).startswith(f"{source}/") else f"{source}/"
    passages = next(filter(None, (_golden(_at(row, *keys)) for keys in _PASSAGES)), ())
    return Question(f"{prefix}{name}", text, golden, source, split, tuple(dict.fromkeys(passages)))


def _golden(found: Any) -> tuple[str, ...]:
    if isinstance(found, dict):
        found = found.get("target")
    if isinstance(found, (str, int, float)) and not isinstance(found, bool):
        found = [found]
    if not isinstance(found, list):
        return ()
    return tuple(str(answer) for answer in found if _is_answer(answer))


def _is_answer(answer: Any) -> bool:
    """Whether it is a text that is not blank, or a finite number; tables use NaN for missing values."""
    if isinstance(answer, str):
        return bool(answer.strip())
    return isinstance(answer, (int, float)) and not isinstance(answer, bool) and math.isfinite(answer)
