"""Reads question sets: parquet or JSON lines, of several data sets.

A row has the question (`env_kwargs.question` or `question`), the golden answers
(`env_kwargs.ground_truth`, `reward_model.ground_truth.target`, `golden_answers`, `answers` or
`answer`; a text or a list of texts), the data set (`data_source`, or the file's name) and, if it
has them, an `id` and the titles of its gold passages (`supporting_facts.title` or
`metadata.supporting_facts.title`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.envs.search.retrieval.corpus import read_lines

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
Columns = Sequence[tuple[str, ...]]  # paths of keys, in order of preference
_ANSWERS: Columns = (
    ("env_kwargs", "ground_truth"),
    ("reward_model", "ground_truth", "target"),
    ("golden_answers",),
    ("answers",),
    ("answer",),
)
_QUESTIONS: Columns = (("env_kwargs", "question"), ("question",))
_SOURCES: Columns = (("data_source",), ("env_kwargs", "data_source"))
_PASSAGES: Columns = (("supporting_facts", "title"), ("metadata", "supporting_facts", "title"))


@dataclass(frozen=True)
class Question:
    """A question and its answers."""

    id: str  # unique in its split
    text: str  # the question
    golden: tuple[str, ...]  # the accepted answers
    source: str  # its data set; results are reported for each
    split: str  # "train" or "test"
    passages: tuple[str, ...] = ()  # titles of the passages that the answer needs; () if unknown


def find_question_files(folder: Path, split: str) -> list[Path]:
    """Lists a split's files by name; InputError without any."""
    paths = sorted(folder.glob(f"{split}*")) if folder.is_dir() else []
    # Several files are several data sets, each named by its file.
    files = [path for path in paths if path.name.endswith(SUFFIXES)]
    if not files:
        raise InputError(
            f"no questions of the split {split!r} there",
            key="config.env.options.data",
            value=repr(str(folder)),
            fix=(
                f"give a folder with {split}.jsonl, {split}.parquet or several files that begin "
                f"with {split}"
            ),
        )
    return files


def load_questions(folder: Path, split: str) -> tuple[Question, ...]:
    """Loads a split's questions, in order of files and rows.

    Raises:
      InputError: a file or a row that cannot be used, with its place, or an id that occurs twice.
    """
    questions: dict[str, Question] = {}
    for path in find_question_files(folder, split):
        rows = _read_parquet(path) if path.suffix == ".parquet" else read_lines(path)
        # Rows without an id are named by this number, which leaves out blank lines.
        for number, (place, row) in enumerate(rows):
            question = _read_question(row, place, number, path, split)
            if question.id in questions:
                raise InputError(
                    f"the id {question.id!r} occurs twice", key=place, fix="give each its own"
                )
            questions[question.id] = question
    if not questions:
        raise InputError(
            f"the files of the split {split!r} have no rows",
            key="config.env.options.data",
            value=repr(str(folder)),
        )
    return tuple(questions.values())


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a parquet file's rows with their places for messages."""
    with optional_imports("search", key=path, other="use JSON lines"):
        import pyarrow
        import pyarrow.parquet as parquet
    try:
        number = 0
        with parquet.ParquetFile(path) as file:
            # In batches, so that the table is not in memory twice.
            for batch in file.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as err:
        raise InputError(
            f"cannot be read as parquet ({' '.join(str(err).split())})", key=path
        ) from err


def _read_question(
    row: dict[str, Any], place: str, number: int, path: Path, split: str
) -> Question:
    text = _first_text(row, _QUESTIONS).strip()
    if not text:
        raise InputError(
            "no question", key=place, fix="write a text in `question` or `env_kwargs.question`"
        )
    golden = _first_texts(row, _ANSWERS)
    if not golden:
        raise InputError(
            "no answers",
            key=place,
            fix="write texts in `golden_answers` (or a reference column)",
        )
    stem = path.name.partition(".")[0]
    source = _first_text(row, _SOURCES) or stem
    name = row.get("id")
    # bool is a kind of int in Python, and true is no id.
    if not isinstance(name, (str, int)) or isinstance(name, bool) or name == "":
        name = f"{stem}_{number}"
    # Ids of data sets may be equal; the data set stands before them.
    question_id = str(name) if str(name).startswith(f"{source}/") else f"{source}/{name}"
    # HotpotQA names a title once for each supporting sentence.
    passages = tuple(dict.fromkeys(_first_texts(row, _PASSAGES)))
    return Question(question_id, text, golden, source, split, passages)


def _get_nested(row: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _first_text(row: dict[str, Any], columns: Columns) -> str:
    """Returns the first column's text that is not blank.

    Returns "" if there is none.
    """
    for keys in columns:
        text = _get_nested(row, keys)
        if isinstance(text, str) and text.strip():
            return text
    return ""


def _first_texts(row: dict[str, Any], columns: Columns) -> tuple[str, ...]:
    """The texts of the first column that has any."""
    for keys in columns:
        texts = _read_texts(_get_nested(row, keys))
        if texts:
            return texts
    return ()


def _read_texts(value: Any) -> tuple[str, ...]:
    """Reads texts in a text, a number, a list of them, or an object with such a `target`."""
    if isinstance(value, dict):
        value = value.get("target")
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list):
        return ()
    return tuple(str(entry) for entry in value if _is_answer(entry))


def _is_answer(value: Any) -> bool:
    """Whether a value is non-blank text or a finite number."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value)  # tables use NaN for missing values
