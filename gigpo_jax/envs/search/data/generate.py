"""Writes the synthetic world in the formats of real data (docs/search.md), with its index."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import replace_file
from gigpo_jax.core.folders import lock_folder
from gigpo_jax.env_bridge.base import Progress, no_progress
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.envs.search.data.world import SPLITS, check_world, make_world
from gigpo_jax.envs.search.questions import Question
from gigpo_jax.envs.search.retrieval.bm25_index import build_index

VERSION = 2  # increased when the same arguments give other data; in the folder's name
PEOPLE = 480


def question_row(question: Question) -> dict[str, object]:
    """A question in the columns of the reference data set."""
    golden = list(question.golden)
    return {
        "id": question.id,
        "data_source": question.source,
        "prompt": [{"role": "user", "content": question.text}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": golden}},
        "extra_info": {"split": question.split},
        "env_kwargs": {
            "ground_truth": golden,
            "question": question.text,
            "data_source": question.source,
        },
        "supporting_facts": {"title": list(question.passages)},
    }


def write_world(
    out: Path,
    *,
    people: int = PEOPLE,
    seed: int = 0,
    progress: Progress = no_progress,
) -> None:
    """Writes a world and its index into a folder.

    Args:
      out: Folder without a world; created if it does not exist.
      people, seed: Arguments of `make_world`.
      progress: Called with 1 after every passage.

    Raises:
      InputError: a number out of range, or a folder that holds a world.
    """
    world = make_world(seed, people=people)
    if (out / "index").exists():
        raise InputError("already holds a world", key="--out", value=out, fix="name another folder")
    out.mkdir(parents=True, exist_ok=True)
    passages = [{"id": document.id, "contents": document.contents} for document in world.documents]
    _write_lines(out / "corpus.jsonl", passages)
    for split in SPLITS:
        rows = [question_row(question) for question in world.questions if question.split == split]
        _write_lines(out / f"{split}.jsonl", rows)
    # The index is last: it marks the folder as complete.
    build_index(world.documents, out / "index", progress=progress)


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with replace_file(path) as temporary:
        # The same bytes on all systems.
        temporary.write_text(text, encoding="utf-8", newline="\n")


def ensure_world(
    cache_root: Path | None = None,
    *,
    people: int = PEOPLE,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Path:
    """Makes a world in the cache folder on first use, even if several processes call it at once.

    Returns:
      The world's folder.
    """
    check_world(seed, people)
    root = cache_folder("search") if cache_root is None else Path(cache_root)
    # All arguments are in the name: another world is another folder. 0 stands for all questions.
    out = root / f"world-{VERSION}-{people}-0-{seed}"
    manifest = out / "index" / "manifest.json"
    if manifest.is_file():
        return out
    root.mkdir(parents=True, exist_ok=True)
    with lock_folder(out):
        # Another process may have made it while this one waited for the lock.
        if not manifest.is_file():
            write_world(out, people=people, seed=seed, progress=progress)
    return out
