"""Regret: the turns that were not needed, against trying out all searches."""

import json
import random
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest

from gigpo_jax.envs import registry
from gigpo_jax.envs.search.env import SearchEnv, make
from gigpo_jax.envs.search.expert.expert import SearchExpert, parse_relations
from gigpo_jax.envs.search.questions import load_questions
from tests.envs.search.test_env import Fixed


def knows(question: str, texts: list[str]) -> bool:
    """Whether one who read these texts, in any order, can follow the question to its answer."""
    reader = SearchExpert()
    reader._subject, reader._relations = parse_relations(question)
    reader._follow_relations("\n".join(texts))
    return not reader._relations


def fewest(question: str, texts: list[str], results: Mapping[str, str]) -> int:
    """The fewest searches after which one knows the answer, and the answer."""
    for number in range(3):
        if any(knows(question, [*texts, *more]) for more in combinations(results.values(), number)):
            return number + 1
    raise AssertionError(question)


@pytest.fixture(scope="module")
def env(world: Path) -> SearchEnv:
    return make(world, topk=1, max_steps=6, regret=True)


def test_it_is_the_turns_that_were_not_needed(world: Path, env: SearchEnv) -> None:
    tasks = env.tasks("train")
    lines = [json.loads(line) for line in (world / "corpus.jsonl").read_text().splitlines()]
    texts = {line["contents"].partition("\n")[0].strip('"'): line["contents"] for line in lines}
    results = {}
    for text in texts.values():  # a passage is found by its own text, not always by its title
        env.reset(tasks[0])
        results[text] = env.step(f"<search>{text}</search>").observation.text
    draw = random.Random(0)
    regrets = set()
    chosen = draw.sample([t for t in tasks if t.type == "one_hop"], 3)
    chosen += draw.sample([t for t in tasks if t.type == "two_hop"], 5)
    for number, task in enumerate(chosen):
        observation = env.reset(task)
        texts_read: list[str] = []
        first_distance = fewest(observation.task, texts_read, results)
        distance = first_distance
        gold = [texts[title] for title in env._find_question(task).passages]
        for query in draw.choices([*gold, draw.choice(sorted(results)), "xyzzy"], k=3):
            result = env.step(f"<search>{query}</search>")
            texts_read.append(result.observation.text)
            next_distance = fewest(observation.task, texts_read, results)
            assert result.info["regret"] == next_distance - distance + 1
            regrets.add(result.info["regret"])
            distance = next_distance
        assert env.step("look around").info["regret"] == 1.0
        right = number % 2 == 0
        last = env.step(
            f"<answer>{env._find_question(task).golden[0] if right else 'no idea'}</answer>"
        )
        assert last.info["regret"] == (
            max(0, 1 - distance) if right else first_distance - distance + 1
        )
    assert regrets == {0.0, 1.0}


def test_a_search_that_shows_both_gold_passages_wastes_nothing(world: Path) -> None:
    question = next(
        question for question in load_questions(world, "train") if question.source == "two_hop"
    )
    retriever = Fixed(*(f'"{title}"\ntext' for title in question.passages))
    env = SearchEnv(str(world), retriever, topk=2, max_steps=4, regret=True)
    env.reset(next(task for task in env.tasks("train") if task.id == question.id))
    assert env.step("<search>x</search>").info["regret"] == 0.0
    assert env.step(f"<answer>{question.golden[0]}</answer>").info["regret"] == 0.0


def test_it_is_told_where_it_is_asked_for_and_known(world: Path, tmp_path: Path) -> None:
    plain = registry.make("search", data=world)
    plain.reset(plain.tasks("train")[0])
    assert "regret" not in plain.step("<search>x</search>").info
    (tmp_path / "test.jsonl").write_text('{"question": "Who?", "answer": "she"}\n')
    unknown = make(tmp_path, url="http://127.0.0.1:1", regret=True)
    unknown.reset(unknown.tasks("test")[0])
    assert "regret" not in unknown.step("<answer>he</answer>").info


def test_gold_passages_are_read_where_the_published_sets_have_them(tmp_path: Path) -> None:
    facts = {"title": ["One", "Two", "One"], "sent_id": [0, 1, 2]}
    rows: list[dict[str, object]] = [
        {"supporting_facts": facts},
        {"metadata": {"supporting_facts": facts}},
        {},
    ]
    lines = [json.dumps({"question": "Who?", "answer": "she", **row}) + "\n" for row in rows]
    (tmp_path / "test.jsonl").write_text("".join(lines))
    assert [question.passages for question in load_questions(tmp_path, "test")] == [
        ("One", "Two")
    ] * 2 + [()]
