"""Plays a game in our engine and in the official one side by side."""

import json
import random
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from gigpo_jax.envs.alfworld.engine.game import Game
from gigpo_jax.envs.alfworld.engine.official import OfficialGame

NOISE = (
    "",
    "LOOK",
    "look.",
    "go  to {thing}",
    "go to {thing} ",
    "\t go to {thing}\n",
    "GO TO {thing}",
    "go to",
    "examine {thing}",
    "open {thing}",
    "close {thing}",
    "use {thing}",
    "take {thing} from {other}",
    "move {thing} to {other}",
    "put {thing} in/on {other}",
    "heat {thing} with {other}",
    "clean {thing} with {other}",
    "cool {thing} with {other}",
    "slice {thing} with {other}",
    "dance",
    "inventory\u00a0",
    "help\x00",
    "{{o}}",
    "d\u00e9j\u00e0 vu \U0001f600",
)


def game_text(problem: str, task: str) -> str:
    """A `game.tw-pddl` with the domain and grammar of the installed package."""
    data = resources.files("alfworld") / "data"
    grammar = (data / "alfred.twl2").read_text()
    return json.dumps(
        {
            "pddl_domain": (data / "alfred.pddl").read_text(),
            "grammar": grammar.replace("UNKNOWN GOAL", task),
            "pddl_problem": problem,
            "solvable": True,
            "walkthrough": [],
        }
    )


def write_game(folder: Path, problem: str, task: str = "put a mug in desk") -> Path:
    """Writes a game into a folder and gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "game.tw-pddl"
    path.write_text(game_text(problem, task))
    return path


def random_command(game: Game, rng: random.Random, bad: float) -> str:
    """An admissible command, the verb drawn first, or with probability `bad` something else."""
    names = [name for name in game.file.names if name]
    if rng.random() < bad:
        return rng.choice(NOISE).format(thing=rng.choice(names), other=rng.choice(names))
    commands = game.admissible
    verbs = sorted({command.split()[0] for command in commands})
    verb = rng.choices(
        verbs, [{"help": 0.1, "inventory": 0.3, "look": 0.5}.get(verb, 1.0) for verb in verbs]
    )[0]
    return rng.choice([command for command in commands if command.split()[0] == verb])


def differences(path: Path, walks: list[Callable[[Game], str | None]], steps: int) -> Iterator[str]:
    """Differences between the two engines, in words.

    Args:
      path: Game.
      walks: Functions from our game's state to the next command, None to stop; each walk starts
        from a reset.
      steps: Largest number of commands of a walk.
    """
    ours = Game(path)
    official = OfficialGame(path)
    try:
        for walk in walks:
            own_step = ours.reset()
            official_step = official.reset()
            commands: list[str] = []
            for _ in range(steps + 1):
                for field in own_step._fields:
                    own_value = getattr(own_step, field)
                    official_value = getattr(official_step, field)
                    if own_value != official_value:
                        yield (
                            f"{path} after {commands}: {field}\n ours     {own_value!r}\n"
                            f" official {official_value!r}"
                        )
                        return
                command = walk(ours)
                if command is None:
                    break
                commands.append(command)
                own_step = ours.step(command)
                official_step = official.step(command)
    finally:
        official.close()
