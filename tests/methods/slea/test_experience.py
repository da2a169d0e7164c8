"""The library of lessons by hand: admission, retrieval, choice of episodes, hosts and checkpoints."""

import json
from typing import Any

import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.methods.slea.experience import (
    EPISODES,
    LESSON,
    Library,
    choose_episodes,
    join_lessons,
    rate_episodes,
)
from gigpo_jax.trajectory import FORKS, Past, Trajectory
from tests.turns import make_turn

SHELF = "You arrive at shelf 1. On the shelf 1, you see a mug 1, and a plate 2."
LIKE_SHELF = SHELF.replace("plate 2", "plate 3")
DRAWER = "The drawer 4 is closed."


def lesson(zone: str, score: float, text: str, *states: str, kind: str = "put") -> dict[str, Any]:
    return {"zone": zone, "score": score, "text": text, "kind": kind, "states": states}


def make_library(warmup: int, capacity: int) -> Library:
    config = default_config()
    config.train.experience = warmup
    library = Library(config, ())
    library.capacity = capacity
    return library


def alone(rows: np.ndarray) -> np.ndarray:
    return rows


def test_a_state_gets_the_best_lessons_of_states_like_it() -> None:
    library = make_library(2, 10)
    library.add_lessons(
        [
            lesson("strategies", 1.0, "take the mug", SHELF, DRAWER),
            lesson("strategies", 3.0, "open first", DRAWER),
            lesson("strategies", 3.0, "go there late", LIKE_SHELF),
            lesson("warnings", 1.0, "never look around", LIKE_SHELF),
            lesson("warnings", 2.0, "do not wait", SHELF),
            lesson("strategies", 9.0, "another task", SHELF, kind="heat"),
        ]
    )
    assert library.find_lessons("put", SHELF) == ((), ())
    library.add_lessons([lesson("strategies", 2.0, "put it down", SHELF)])
    # Two strategies and one warning, best first; the second one was written in a state like it.
    for state in (SHELF, LIKE_SHELF):
        found = library.find_lessons("put", state)
        assert found == (("go there late", "put it down"), ("do not wait",))
    assert library.find_lessons("put", DRAWER) == (("open first", "take the mug"), ())
    assert library.find_lessons("heat", LIKE_SHELF) == (("another task",), ())
    # No lesson is about a state like it: the best ones of its task type.
    assert library.find_lessons("heat", DRAWER) == (("another task",), ())
    assert library.find_lessons("put", "far away") == (
        ("open first", "go there late"),
        ("do not wait",),
    )
    assert library.find_lessons("cool", SHELF) == ((), ())
    library.add_lessons([lesson("warnings", 1.0, "never stop", SHELF, kind="cool")])
    assert library.find_lessons("cool", SHELF) == ((), ("never stop",))
    assert library.metrics == {"experience/strategies": 5.0, "experience/warnings": 3.0}
    # What was found for a state holds until lessons come or go.
    earlier = json.loads(json.dumps(library.record()))
    before = library.find_lessons("put", "far away")
    library.add_lessons([lesson("strategies", 0.5, "come closer", "far away")])
    assert library.find_lessons("put", "far away") == (("come closer",), ())
    library.restore(earlier)
    assert library.find_lessons("put", "far away") == before


def test_a_full_zone_admits_what_is_better_than_its_worst() -> None:
    library = make_library(1, 2)

    def texts(*lessons: dict[str, Any]) -> list[tuple[str, float]]:
        library.add_lessons(lessons)
        return [(entry.text, entry.score) for entry in library.entries["strategies"]]

    first = [lesson("strategies", 2.0, "aaaa", SHELF), lesson("strategies", 1.0, "bbbb", SHELF)]
    assert texts(*first) == [("aaaa", 2.0), ("bbbb", 1.0)]
    assert texts(lesson("strategies", 1.0, "cccc", SHELF)) == [("aaaa", 2.0), ("bbbb", 1.0)]
    assert texts(lesson("strategies", 1.5, "cccc", SHELF)) == [("aaaa", 2.0), ("cccc", 1.5)]
    # The other zone has room of its own.
    assert texts(lesson("warnings", 0.5, "dddd", SHELF)) == [("aaaa", 2.0), ("cccc", 1.5)]
    assert len(library.entries["warnings"]) == 1
    # Nearly the same words: the better score, and the states of both.
    assert texts(lesson("strategies", 4.0, "CCCC", DRAWER)) == [("aaaa", 2.0), ("cccc", 4.0)]
    assert library.find_lessons("put", DRAWER) == (("cccc",), ())
    assert library.find_lessons("put", SHELF)[0] == ("cccc", "aaaa")


def test_a_restored_library_goes_on_alike() -> None:
    rng = np.random.default_rng(0)
    words = ["open drawer", "take mug", "wait here", "go away now", "look at lamp", "heat an egg"]

    def draw() -> list[dict[str, Any]]:
        return [
            lesson(
                str(rng.choice(["strategies", "warnings"])),
                float(rng.integers(4)),
                f"{rng.choice(words)} {rng.choice(words)}",
                *rng.choice([SHELF, LIKE_SHELF, DRAWER, "a", "b"], 2).tolist(),
            )
            for _ in range(8)
        ]

    whole = make_library(0, 3)
    whole.add_lessons(draw())
    resumed = make_library(0, 3)
    resumed.restore(json.loads(json.dumps(whole.record())))
    for _ in range(3):
        lessons = draw()
        whole.add_lessons(lessons)
        resumed.add_lessons(lessons)
        assert resumed.record() == whole.record()
        for state in (SHELF, DRAWER, "a", "c"):
            assert resumed.find_lessons("put", state) == whole.find_lessons("put", state)


def episode(group: int, member: int, reward: float, penalty: float = 0.0, **fields: Any):
    turns = [
        make_turn(anchor=SHELF, reward=0.0, penalty=penalty),
        make_turn(anchor=DRAWER, reward=reward),
        make_turn(anchor=SHELF),
    ]
    task = Task("t", "put", "train")
    return Trajectory(task, group, member, turns, won=reward > 0, **fields)


def test_lessons_are_about_the_best_and_worst_episodes() -> None:
    trajectories = [
        episode(0, 0, 10.0),
        episode(0, 1, 0.0),
        episode(0, 2, 0.0, penalty=1.0),
        # All alike, and one that counts for nothing.
        episode(1, 0, 10.0),
        episode(1, 1, 10.0),
        episode(1, 2, 0.0, aborted=True),
        # Nothing is learned from this one, and that one had another start.
        episode(0, 3, 40.0, replaced=True),
        episode(0, 4, 20.0, past=Past(("go",), source=FORKS)),
    ]
    chosen = choose_episodes(trajectories, alone)
    # Returns 10, 0, -1, mean 3.
    assert [(t.group, t.member, zone) for t, zone in chosen] == [
        (0, 0, "strategies"),
        (0, 2, "warnings"),
        (0, 1, "warnings"),
    ]
    assert [rated.score for rated in rate_episodes(trajectories)] == [7.0, 3.0, 4.0]
    many = [episode(group, member, 10.0 * member) for group in range(9) for member in range(2)]
    assert [t.group for t, about in choose_episodes(many, alone) if t.won] == [*range(EPISODES)]


def test_two_hosts_choose_and_join_as_one() -> None:
    groups = [
        [episode(group, member, 10.0 * (member <= group)) for member in range(8)]
        for group in range(6)
    ]
    everything = [t for group in groups for t in group]
    hosts = [
        [t for group in groups[:2] for t in group],
        [t for group in groups[2:] for t in group],
    ]
    tables: list[np.ndarray] = []
    for host in hosts:
        choose_episodes(host, lambda rows: tables.append(rows) or rows)
    chosen = [choose_episodes(host, lambda rows: np.concatenate(tables)) for host in hosts]
    want = {(t.group, t.member) for t, _ in choose_episodes(everything, alone)}
    assert sum(map(len, chosen)) == len(want) == 2 * EPISODES
    assert {(t.group, t.member) for host in chosen for t, _ in host} == want
    assert all(len(host) for host in chosen)
    for trajectory, _ in (pair for host in chosen for pair in host):
        trajectory.notes[LESSON] = f"Öffne {trajectory.member}\u2028 zuerst"
    # The policy wrote nothing.
    everything[-1].notes[LESSON] = ""
    letters: list[np.ndarray] = []
    for host in hosts:
        join_lessons(host, lambda rows: letters.append(rows) or rows)
    # Hosts may stand in any order.
    joined = join_lessons(hosts[0], lambda rows: np.concatenate(letters[::-1]))
    assert joined == join_lessons(everything, alone)
    assert len(joined) == len(want) - 1
    assert joined[0]["text"].startswith("Öffne ")
    assert joined[0]["states"] == [SHELF, DRAWER]
    assert join_lessons([], alone) == []
    assert joined[0]["score"] == pytest.approx(10.0 * 7 / 8)


SHOWS = {"train.experience": 5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl.algorithm": "slea"}, r"train\.experience=0: slea shows lessons .*; use 5"),
        (
            SHOWS | {"env.prompt": "chat"},
            r"experience=5: prompts of env\.name=alfworld with env\.p",
        ),
        (
            SHOWS | {"train.max_staleness": 1},
            r"train\.experience=5: .*; use train\.max_staleness=0",
        ),
        ({"train.experience": -1}, r"train\.experience=-1: must be 0 or greater"),
        (
            SHOWS | {"rl.algorithm": "slea", "rl.anchor_match": "exact"},
            r"rl\.anchor_match='exact': slea always has 'similar'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    config = default_config()
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        config[section][name] = value
    with pytest.raises(InputError, match=message):
        resolve(config)


def test_slea_has_similar_states() -> None:
    config = default_config()
    config.rl.algorithm = "slea"
    config.train.experience = 5
    rl = resolve(config).rl
    assert (rl.anchor_match, rl.similarity, rl.step_weight) == ("similar", 0.85, 1.0)
