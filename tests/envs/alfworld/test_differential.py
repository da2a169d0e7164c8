"""Our engine and the official one play the same commands; all results are compared."""

import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.alfworld import Game
from gigpo_jax.envs.alfworld.data.one_split import generate_games
from tests.envs.alfworld.differential import differences, random_command, write_game
from tests.envs.alfworld.generated import read_walkthrough
from tests.envs.alfworld.odd_problems import odd_problem
from tests.envs.alfworld.provocations import provocations
from tests.envs.alfworld.rooms import APPLE_WALK, ROOM, WALK
from tests.envs.alfworld.test_engine import recorded
from tests.envs.alfworld.test_game_file import patched_like_the_downloaded_games

pytest.importorskip("textworld", reason="needs the official engine: pip install alfworld==0.4.2")
from gigpo_jax.envs.alfworld.engine.official import OfficialGame

pytestmark = pytest.mark.slow

Walk = Callable[[Game], str | None]


def script(commands: tuple[str, ...]) -> Walk:
    rest = iter(commands)
    return lambda game: next(rest, None)


def at_random(rng: random.Random, bad: float = 0.2) -> Walk:
    return lambda game: random_command(game, rng, bad)


def assert_same(path: Path, walks: list[Walk], steps: int) -> None:
    assert list(differences(path, walks, steps)) == []


def test_every_rule_in_the_hand_made_room(tmp_path: Path) -> None:
    commands = tuple(command.rstrip("#") for command in (*WALK, *APPLE_WALK[:4], *APPLE_WALK))
    assert_same(write_game(tmp_path, ROOM), [script(commands)], len(commands))


def test_the_patched_texts_of_downloaded_games(tmp_path: Path) -> None:
    path = write_game(tmp_path, ROOM)
    path.write_text(patched_like_the_downloaded_games(path.read_text()))
    assert_same(path, [script(("help", "go to fridge 1", "look"))], 3)


@pytest.mark.parametrize("index", range(3))
def test_a_small_generated_game(index: int, tmp_path: Path) -> None:
    folder = generate_games(tmp_path, "train", 3, seed=5, size="small")
    path = sorted(folder.rglob("game.tw-pddl"))[index]
    walkthrough = read_walkthrough(path)
    assert walkthrough
    assert_same(
        path, [script((*walkthrough, "look", "inventory")), at_random(random.Random(index))], 25
    )


def test_an_odd_game(tmp_path: Path) -> None:
    rng = random.Random(11)
    path = write_game(tmp_path, odd_problem(ROOM, rng))
    assert_same(path, [at_random(rng)], 60)


def test_a_thing_with_a_bare_name_and_a_goal_that_holds_at_the_start(tmp_path: Path) -> None:
    problem = ROOM.replace("SinkBasinType - rtype", "SinkBasinType - rtype chair Apple - object")
    # beside Apple_bar_1 and others
    inside = "(inReceptacle chair Fridge_bar_1) (inReceptacle Apple Fridge_bar_1)"
    problem = problem.replace("(openable Fridge_bar_1)", f"(openable Fridge_bar_1) {inside}")
    problem = problem.replace(
        "(pickupable Apple_bar_1)",
        "(pickupable Apple_bar_1) (inReceptacle Apple_bar_1 Microwave_bar_1)",
    )
    path = write_game(tmp_path, problem)
    assert_same(
        path,
        [script(("go to fridge 1", "open fridge 1", "examine chair ", "examine apple ", "look"))],
        5,
    )
    game = Game(path)
    step = game.reset()
    assert (step.won, step.done) == (True, False)


def test_the_edges_of_the_rules(tmp_path: Path) -> None:
    """Doors, lamps, knives, appliances, vessels and spelling; then a reset in the middle of it."""
    rng = random.Random(7)
    assert_same(write_game(tmp_path, ROOM), [provocations(rng), provocations(rng)], 40)


def games(count: int, quick: Collection[int]) -> list[Any]:
    """The numbers of games, of which only the quick ones are played outside of `make difftest`."""
    marks = (pytest.mark.long, pytest.mark.timeout(3600))
    return [pytest.param(n, marks=() if n in quick else marks) for n in range(count)]


@pytest.mark.parametrize("index", games(12, (6,)))
def test_the_edges_of_the_rules_in_generated_games(index: int, seed: int, tmp_path: Path) -> None:
    """All six task types; once from the start, and once after the goal was reached."""
    folder = generate_games(tmp_path, "train", 12, seed=seed, size="full" if index < 6 else "small")
    path = sorted(folder.rglob("game.tw-pddl"))[2 * (index % 6)]
    rng = random.Random(f"edges {seed} {index}")
    then = provocations(rng)
    done = iter(read_walkthrough(path))
    assert_same(path, [provocations(rng), lambda game: next(done, None) or then(game)], 40)


@pytest.mark.parametrize("index", games(24, (0, 4, 8)))
def test_generated_games(index: int, seed: int, tmp_path: Path) -> None:
    """All six task types, small and full rooms; the walkthrough and two random walks."""
    split = ("train", "valid_seen", "valid_unseen")[index % 3]
    folder = generate_games(
        tmp_path, split, index + 1, seed=seed, size="small" if index % 4 == 0 else "full"
    )
    path = sorted(folder.rglob("game.tw-pddl"))[index]
    rng = random.Random(f"{seed} {index}")
    walks = [script(read_walkthrough(path)), at_random(rng, 0.3), at_random(rng, 0.1)]
    assert_same(path, walks, 60)


@pytest.mark.parametrize("index", games(40, range(4)))
def test_odd_games(index: int, seed: int, tmp_path: Path) -> None:
    """Facts, names and goals that generated games lack; half of them in the hand-made room."""
    rng = random.Random(f"odd {seed} {index}")
    record = rng.choice(recorded())
    path = write_game(
        tmp_path, odd_problem(ROOM if index % 2 else record["pddl_problem"], rng), record["task"]
    )
    try:
        Game(path)
    except InputError:
        official_never_wins(path, rng)
    else:
        assert_same(path, [at_random(rng)], 120)


def official_never_wins(path: Path, rng: random.Random) -> None:
    """A goal that ours refuses fails in the official engine at load, or is never reached."""
    try:
        official = OfficialGame(path)
    except InputError:
        return
    step = official.reset()
    for _ in range(40):
        assert not step.won
        step = official.step(rng.choice(step.admissible))
    official.close()
