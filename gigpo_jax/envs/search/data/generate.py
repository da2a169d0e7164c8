"""Writes the synthetic world in the formats of real data (docs/search.md), with its index."""

import json
from pathlib import Path

from gigpo_jax.env_bridge.base import Progress, no_progress
from gigpo_jax.env_bridge.paths import cache_folder, locked
from gigpo_jax.envs.search.data.world import SPLITS, check_world, make_world
from gigpo_jax.envs.search.questions import Question
from gigpo_jax.envs.search.retrieval.bm25_index import build_index
from gigpo_jax.errors import InputError

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
        "env_kwargs": {"ground_truth": golden, "question": question.text, "data_source": question.source},
        "supporting_facts": {"title": list(question.passages)},
    }


def generate(
    out: Path, *, people: int = PEOPLE, questions: int = 0, seed: int = 0, progress: Progress = no_progress
) -> None:
    """Writes a world (see `make_world`) and its index into a folder; `progress` is called with 1 after every passage.

    Raises:
      InputError: a number out of range, or a folder that holds a world.
    """
    world = make_world(seed, people=people, questions=questions)
    if (out / "index").exists():
        raise InputError(f"--out {out}: already holds a world; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict]] = {"corpus": [{"id": d.id, "contents": d.contents} for d in world.documents]}
    for split in SPLITS:
        rows[split] = [question_row(question) for question in world.questions if question.split == split]
    for name, lines in rows.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="\n")
    build_index(world.documents, out / "index", progress=progress)  # last: it marks the folder as complete


def ensure_world(
    cache_root: Path | None = None,
    *,
    people: int = PEOPLE,
    questions: int = 0,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Path:
    """A generated world in the cache folder, made on first use; safe to call from several processes at once."""
    check_world(seed, people, questions)
    root = cache_folder("search") if cache_root is None else Path(cache_root)
    out = root / f"world-{VERSION}-{people}-{questions}-{seed}"
    if (out / "index" / "manifest.json").is_file():
        return out
    root.mkdir(parents=True, exist_ok=True)
    with locked(out):
        if not (out / "index" / "manifest.json").is_file():
            generate(out, people=people, questions=questions, seed=seed, progress=progress)
    return out
