"""The fewest commands to the goal, against a search through all states of small rooms."""

import random
from pathlib import Path

import pytest

from gigpo_jax.envs.alfworld.data.one_split import generate_games
from gigpo_jax.envs.alfworld.engine.game import Game
from tests.envs.alfworld.generated import read_walkthrough

DEPTH = 9


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """12 rooms of 4 receptacles and 3 objects, two of each task type."""
    folder = tmp_path_factory.mktemp("games")
    generate_games(folder, "train", games=12, seed=3, size="small", receptacles=4, objects=3)
    return sorted(folder.rglob("game.tw-pddl"))


def twin(game: Game) -> Game:
    """The same state, in a game of its own."""
    copy = Game(game.file)
    copy.state = set(game.state)
    copy._held = list(game._held)
    copy.place = game.place
    copy._contents = {receptacle: list(things) for receptacle, things in game._contents.items()}
    copy.admissible = game.admissible
    copy._won = game._won
    return copy


def searched(game: Game) -> int | None:
    """Breadth-first search through all states; None beyond `DEPTH` commands."""
    frontier = [game]
    visited = set()
    for depth in range(DEPTH + 1):
        if any(state._won for state in frontier):
            return depth
        following = []
        for state in frontier:
            for command in state.admissible:
                if command.startswith(("examine", "look", "help", "inventory")):
                    continue
                successor = twin(state)
                successor.step(command)
                key = frozenset(successor.state)
                if key not in visited:
                    visited.add(key)
                    following.append(successor)
        frontier = following
    return None


def test_it_is_the_length_of_the_walkthrough_and_falls_by_one_along_it(games: list[Path]) -> None:
    for path in games:
        game = Game(path)
        walkthrough = read_walkthrough(path)
        remaining = [game.remaining()]
        for command in walkthrough:
            game.step(command)
            remaining.append(game.remaining())
        assert remaining == list(range(len(walkthrough), -1, -1))


def test_from_anywhere_it_is_what_a_search_finds(games: list[Path]) -> None:
    rng = random.Random(0)
    regrets = []
    for path in games:
        game = Game(path)
        for _ in range(10):
            game.step(
                rng.choice(
                    [
                        c
                        for c in game.admissible
                        if not c.startswith(("examine", "look", "help", "inv"))
                    ]
                )
            )
        expected = searched(game)
        if expected is not None:
            assert game.remaining() == expected, path
            regrets.append(expected)
    assert len(regrets) > 8
    assert len(set(regrets)) > 3


def test_no_action_of_a_random_walk_wastes_less_than_nothing(tmp_path: Path) -> None:
    generate_games(tmp_path, "train", games=6, seed=5)
    draw = random.Random(1)
    for path in sorted(tmp_path.rglob("game.tw-pddl")):
        game = Game(path)
        previous = game.remaining()
        for _ in range(60):
            game.step(draw.choice(game.admissible))
            current = game.remaining()
            assert previous is not None
            assert current is not None
            assert current >= previous - 1
            previous = current
