"""Our engine against recorded walks of the official one, and against the rules by hand."""

import gzip
import json
import statistics
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.envs.alfworld import Game
from gigpo_jax.envs.alfworld.engine.game import NOTHING_HAPPENS
from gigpo_jax.envs.alfworld.engine.load_game import load_game
from tests.envs.alfworld.differential import write_game
from tests.envs.alfworld.rooms import APPLE_WALK, ROOM, WALK

WALKS = Path(__file__).parents[2] / "data/alfworld/walks.jsonl.gz"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_game(tmp_path_factory.mktemp("room"), ROOM)


def recorded() -> list[dict]:
    with gzip.open(WALKS, "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("index", range(18))
def test_every_character_of_the_recorded_walks(index: int, tmp_path: Path) -> None:
    record = recorded()[index]
    game = Game(write_game(tmp_path, record["pddl_problem"], record["task"]))
    for walk in record["walks"]:
        first = game.reset()
        assert first == (walk["first"], tuple(walk["admissible"]), 0.0, False, False)
        for step in walk["steps"]:
            expected = (
                step["feedback"],
                tuple(step["admissible"]),
                step["reward"],
                step["done"],
                step["won"],
            )
            assert game.step(step["command"]) == expected


def test_there_are_eighteen_records_with_two_walks_each() -> None:
    assert [len(record["walks"]) for record in recorded()] == [2] * 18


@pytest.mark.parametrize("walk", [WALK, APPLE_WALK])
def test_what_is_marked_as_inadmissible_changes_nothing(room: Path, walk: tuple[str, ...]) -> None:
    game = Game(room)
    last = game.reset()
    for command in walk:
        step = game.step(command.rstrip("#"))
        assert (step.feedback == NOTHING_HAPPENS) == command.endswith("#"), command
        if command.endswith("#"):
            assert step.admissible == last.admissible
        last = step


def say(game: Game, *commands: str) -> str:
    game.reset()
    return [game.step(command).feedback for command in commands][-1]


def test_the_quirks_of_the_official_engine(room: Path) -> None:
    game = Game(room)
    # two receptacles at one place: what moved between them is seen "next to" the place
    assert say(game, "go to shelf 1", "look") == (
        "You are facing the countertop 1, shelf 2, and shelf 1. Next to it, you see nothing."
    )
    knife = ("go to countertop 1", "take knife 1 from countertop 1")
    assert (
        say(game, *knife, "examine apple 2") == NOTHING_HAPPENS
    )  # only what is held can be examined
    assert say(game, *knife, "slice apple 1 with knife 1") == NOTHING_HAPPENS  # it is in the fridge
    assert (
        say(game, *knife, "slice bread 1 with knife 1")
        == "You sliced the bread 1 with the knife 1."
    )
    mug = ("go to countertop 1", "take mug 1 from countertop 1", "move mug 1 to shelf 2", "look")
    assert say(game, *mug).endswith("Next to it, you see a mug 1.")
    assert (
        say(game, "go to shelf 1", "use desklamp 1", "use desklamp 1")
        == "You turn on the desklamp 1."
    )
    assert say(game, "go to shelf 1", "take bowl 1 from shelf 1", "examine bowl 1") == (
        "This is a normal bowl 1. In it, you see a apple 2."
    )


def test_the_order_of_words_about_an_object(room: Path) -> None:
    game = Game(room)
    game.reset()
    outcomes = [
        step.feedback
        for command in APPLE_WALK
        if (step := game.step(command)) and command == "examine apple 2"
    ]
    assert outcomes == [
        "This is a sliced apple 2.",
        "This is a clean sliced apple 2.",
        "This is a hot and clean sliced apple 2.",
        "This is a cool and clean sliced apple 2.",
    ]


def test_cold_and_hot_exclude_each_other(room: Path) -> None:
    game = Game(room)
    apple = (
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "go to fridge 1",
        "cool apple 2 with fridge 1",
    )
    assert say(game, *apple, "examine apple 2") == "This is a cold apple 2."
    hot = (*apple, "go to microwave 1", "heat apple 2 with microwave 1")
    assert say(game, *hot, "examine apple 2") == "This is a hot apple 2."


def test_done_follows_the_goal(room: Path) -> None:
    game = Game(room)
    game.reset()
    won = [(game.step(command).done, command) for command in APPLE_WALK]
    assert [done for done, _ in won[-6:]] == [True, True, False, False, True, True]
    assert not any(done for done, _ in won[:-6])
    assert game.step("nonsense").reward == 1.0
    assert game.reset()[2:] == (0.0, False, False)


def test_games_that_share_a_file_do_not_disturb_each_other(room: Path) -> None:
    shared = load_game(room)
    first_game = Game(shared)
    second_game = Game(shared)
    fresh_game = Game(room)
    first_game.reset(), second_game.reset(), fresh_game.reset()
    for command in WALK:
        first_game.step(command.rstrip("#"))
    for command in APPLE_WALK:
        assert second_game.step(command.rstrip("#")) == fresh_game.step(command.rstrip("#"))
    assert first_game.reset() == second_game.reset()


def test_white_space_and_case(room: Path) -> None:
    game = Game(room)
    game.reset()
    assert game.step(" \t\nlook\u2003\r\n").feedback != NOTHING_HAPPENS
    for command in (
        "LOOK",
        "go  to fridge 1",
        "go to\tfridge 1",
        "go to fridge 1.",
        "go to fridge",
        "",
    ):
        assert game.step(command).feedback == NOTHING_HAPPENS


GAMES: dict[str, Game] = {}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_text_is_answered(room: Path, data: st.DataObject) -> None:
    game = GAMES.setdefault("room", Game(room))
    game.reset()
    words = st.sampled_from(
        [*WALK, *APPLE_WALK, "apple 2", "from", "to", "with", "{0}", "%s", "\\"]
    )
    texts = st.one_of(st.text(st.characters()), st.lists(words, max_size=4).map(" ".join), words)
    for command in data.draw(st.lists(texts, max_size=12)):
        inventory = game.step("inventory")
        step = game.step(command)
        assert list(step.admissible) == sorted(set(step.admissible))
        if command.strip() not in inventory.admissible:
            assert step == (NOTHING_HAPPENS, inventory.admissible, *inventory[2:])
        else:
            assert step.feedback != NOTHING_HAPPENS


def test_very_long_and_broken_text_is_answered_at_once(room: Path) -> None:
    game = Game(room)
    game.reset()
    start = time.process_time()
    for command in (
        "look" * 1_000_000,
        " " * 4_000_000,
        "go to " + "\ud800" * 1_000_000,
        "\x00" * 1_000_000,
    ):
        assert game.step(command).feedback == NOTHING_HAPPENS
    assert game.step(" " * 1_000_000 + "look" + "\n" * 1_000_000).feedback != NOTHING_HAPPENS
    assert time.process_time() - start < 2.0


def test_speed_and_size(tmp_path: Path) -> None:
    """The goals are 50 us, 5 ms and 2 MB of CPU time; the bounds leave room for a slow machine."""
    import tracemalloc

    record = max(recorded(), key=lambda record: len(record["pddl_problem"]))
    path = write_game(tmp_path, record["pddl_problem"], record["task"])
    loads = []
    steps = []
    for _ in range(7):
        start = time.process_time()
        game = Game(path)
        loads.append(time.process_time() - start)
    for walk in record["walks"] * 3:
        game.reset()
        for step in walk["steps"]:
            start = time.process_time()
            game.step(step["command"])
            steps.append(time.process_time() - start)
    assert statistics.median(steps) < 100e-6
    assert min(loads) < 10e-3
    tracemalloc.start()
    try:
        initial_bytes = tracemalloc.get_traced_memory()[0]
        game = Game(path)
        for walk in record["walks"]:
            game.reset()
            for step in walk["steps"]:
                game.step(step["command"])
        assert tracemalloc.get_traced_memory()[0] - initial_bytes < 2 << 20
    finally:
        tracemalloc.stop()
