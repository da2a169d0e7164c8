"""The official engine behind our interface."""

import subprocess
import sys
from pathlib import Path

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.alfworld.engine.official import OfficialGame
from tests.envs.alfworld.differential import write_game
from tests.envs.alfworld.rooms import ROOM


def test_without_the_packages_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_game(tmp_path, ROOM)
    monkeypatch.setitem(
        sys.modules, "textworld", None
    )  # what an import sees where the package is missing
    with pytest.raises(InputError, match=r"pip install alfworld==0.4.2"):
        OfficialGame(path)


def test_a_missing_game(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such game"):
        OfficialGame(tmp_path / "no.tw-pddl")


class TestWithThePackages:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("textworld", reason="needs: pip install alfworld==0.4.2")

    def test_play_expert_and_close(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_game(tmp_path, ROOM, "put an apple in microwave")
        arguments = list(sys.argv)
        game = OfficialGame(tmp_path)
        with pytest.raises(EnvError, match="before reset"):
            game.step("look")
        first = game.reset()
        assert first.feedback.startswith("-= Welcome to TextWorld, ALFRED! =-")
        assert game.task == "put an apple in microwave"
        for command in (
            "go to countertop 1",
            "take apple 2 from countertop 1",
            "go to microwave 1",
        ):
            assert not game.step(command).done
        assert game.step("move apple 2 to microwave 1")[2:] == (1.0, True, True)
        game.close()
        game.close()
        with pytest.raises(EnvError, match="closed"):
            game.step("look")
        assert sys.argv == arguments
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("?o AppleType", "?o BreadType", "cannot be reached"),
            ("(:init", "(:start", "cannot load"),
            ("agent1 - agent", "agent1 - robot", "cannot load"),
        ],
    )
    def test_a_game_that_it_cannot_load(
        self, old: str, new: str, says: str, tmp_path: Path
    ) -> None:
        path = write_game(tmp_path, ROOM.replace(old, new, 1))
        with pytest.raises(InputError, match=says) as error:
            OfficialGame(path)
        assert str(path) in str(error.value)

    def test_a_process_that_closed_several_games_ends_well(self, tmp_path: Path) -> None:
        """Unloading copies of the planner library would make a process crash at its end."""
        path = write_game(tmp_path, ROOM)
        script = (
            "import sys; from gigpo_jax.envs.alfworld.engine.official import OfficialGame as Game\n"
            "first, other = Game(sys.argv[1]), Game(sys.argv[1])\n"
            "texts = [game.reset().feedback for game in (first, other)]\n"
            "first.step('go to fridge 1')\n"
            "assert other.step('look').feedback != first.step('look').feedback\n"
            "first.close(), other.close()\n"
            "for _ in range(3):\n"
            "    game = Game(sys.argv[1])\n"
            "    texts.append(game.reset().feedback)\n"
            "    game.close()\n"
            "assert len(set(texts)) == 1\n"
            "maps = open('/proc/self/maps')\n"
            "loaded = {line.split()[5] for line in maps if 'libdownward' in line}\n"
            "assert len(loaded) == 2, loaded\n"
        )
        subprocess.run([sys.executable, "-c", script, path], check=True, timeout=240)
