"""The synthetic world: deterministic, answerable, and without an entity in both splits."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.search.data import generate
from gigpo_jax.envs.search.data.names import TRADES
from gigpo_jax.envs.search.data.world import make_world
from gigpo_jax.envs.search.expert.expert import RELATIONS, parse_relations
from gigpo_jax.envs.search.questions import load_questions

NAME = re.compile(r"[A-Z][a-z]+(?: (?:of )?[A-Z][a-z]+)+")


def names(text: str) -> set[str]:
    """Names of entities: two or more capitalised words."""
    return set(NAME.findall(text.replace("In which", "in which").replace("On which", "on which")))


def test_a_world_is_the_same_everywhere_and_another_seed_gives_another() -> None:
    def digest(seed: int) -> str:
        return hashlib.sha256(repr(make_world(seed, people=32)).encode()).hexdigest()

    assert (
        digest(0) == digest(0) == "79af42d4473d16e6f6978a48069fe554b0cb42f812bf1e6edc2ccd086da00a86"
    )
    assert digest(0) != digest(1)


def test_the_default_world_has_thousands_of_passages_and_unique_ids() -> None:
    world = make_world()
    assert len(world.documents) == 3600 == len({document.id for document in world.documents})
    counts: dict[tuple[str, str], int] = {}
    for question in world.questions:
        counts[question.split, question.source] = (
            counts.get((question.split, question.source), 0) + 1
        )
    assert counts == {
        ("train", "one_hop"): 1260,
        ("train", "two_hop"): 900,
        ("test", "one_hop"): 420,
        ("test", "two_hop"): 300,
    }
    assert len({(question.split, question.id) for question in world.questions}) == len(
        world.questions
    )


def test_every_answer_follows_from_the_passages_and_no_entity_is_in_both_splits() -> None:
    world = make_world(3, people=64)
    corpus = "\n".join(document.contents for document in world.documents)
    entities: dict[str, set[str]] = {"train": set(), "test": set()}
    for question in world.questions:
        subject, relations = parse_relations(question.text)
        entities[question.split] |= {subject}
        assert relations
        assert len(relations) == (2 if question.source == "two_hop" else 1)
        for relation in relations:
            answers = re.findall(RELATIONS[relation].fact.replace("{}", re.escape(subject)), corpus)
            assert len(set(answers)) == 1, f"{question.text}: {relation} of {subject} is {answers}"
            subject = answers[0]
            if subject.lower() not in TRADES:
                entities[question.split].add(subject)
        assert question.golden == (subject.title() if subject.lower() in TRADES else subject,)
        assert names(question.text) <= entities[question.split]
    assert len(entities["train"]) > 100
    assert not entities["train"] & entities["test"]


def test_a_large_world_has_names_of_the_same_few_words() -> None:
    world = make_world(0, people=2400)
    splits = {
        split: [q for q in world.questions if q.split == split] for split in ("train", "test")
    }
    assert (len(splits["train"]), len(splits["test"])) == (10_800, 3600)
    subjects = {
        split: {parse_relations(question.text)[0] for question in rows}
        for split, rows in splits.items()
    }
    assert not subjects["train"] & subjects["test"]
    words = {split: set(" ".join(names).split()) for split, names in subjects.items()}
    assert words["test"] <= words["train"], "nothing has to be spelt that was never seen"
    golden = {
        split: {answer for question in rows for answer in question.golden}
        for split, rows in splits.items()
    }
    assert set(" ".join(golden["test"]).split()) <= set(" ".join(golden["train"]).split())


def test_what_is_written_is_what_is_read(world: Path) -> None:
    synthetic = make_world(0, people=48)
    for split in ("train", "test"):
        expected = [(q.text, q.golden, q.source) for q in synthetic.questions if q.split == split]
        assert [(q.text, q.golden, q.source) for q in load_questions(world, split)] == expected
    row = json.loads((world / "train.jsonl").read_text().splitlines()[0])
    assert {"data_source", "prompt", "ability", "reward_model", "extra_info", "env_kwargs"} < set(
        row
    )


def test_wrong_numbers_and_full_folders_are_told(world: Path, tmp_path: Path) -> None:
    for wrong in ({"people": 3}, {"people": 10**6}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            make_world(0, **wrong)
    with pytest.raises(InputError, match="already holds a world"):
        generate.write_world(world, people=48)
    assert main(["search", "generate", "--out", str(tmp_path / "w"), "--people", "1"]) == 2
