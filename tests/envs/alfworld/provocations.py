"""Walks that go to the edges of the rules: doors, lamps, knives, appliances, vessels, spelling."""

import random
from collections.abc import Callable, Iterator

from gigpo_jax.envs.alfworld.engine.game import Game

SPELLINGS: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.title,
    str.swapcase,
    lambda command: f"  {command}",
    lambda command: f"{command}\r\n",
    lambda command: f"\u2003\x1c{command}\x85",
    lambda command: command.replace(" ", "  "),
    lambda command: command.replace(" ", "\t"),
    lambda command: command.replace(" ", "\u00a0"),
    lambda command: command.replace(" ", ""),
    lambda command: f"{command}.",
    lambda command: f"{command}\x00",
    lambda command: f"{command}\u200b",
    lambda command: f"\ufeff{command}",
    lambda command: f'"{command}"',
    lambda command: f"> {command}",
    lambda command: f"{command}\n{command}",
    lambda command: f"{command}; {command}",
    lambda command: f"{command} {command}",
    lambda command: command.replace(" 1", " 01"),
    lambda command: command.replace(" 1", " \u0661"),
    lambda command: command.replace("a", "\u0430"),
    lambda command: command.replace(" ", " the ", 1),
    lambda command: command[:-1],
)
OUT_OF_PLACE = (
    *(
        "",
        " ",
        "\n",
        "l",
        "i",
        "x",
        "z",
        "again",
        "undo",
        "quit",
        "restart",
        "save",
        "score",
        "wait",
        "None",
        "0",
        "-1",
    ),
    *(
        "go",
        "go to",
        "look around",
        "examine",
        "examine room",
        "examine agent 1",
        "examine agent1",
        "inventory 1",
    ),
    *(
        "go to loc 1",
        "go to agent 1",
        "take from",
        "move to",
        "use",
        "slice with",
        "help me",
        "open",
        "close all",
    ),
    *(
        "take all",
        "drop all",
        "put down",
        "{command}",
        "%s",
        "\\",
        "<action>look</action>",
        "\U0001f600",
        "\ud83d",
    ),
)


def provocations(rng: random.Random) -> Callable[[Game], str]:
    """A walk that plays one scene after another, drawn without end.

    Args:
      rng: all randomness.

    Returns:
      Gives the next command for the state of a game; most are not admissible on purpose.
    """
    scene: Iterator[str] = iter(())

    def walk(game: Game) -> str:
        nonlocal scene
        while (command := next(scene, None)) is None:
            scene = rng.choice(SCENES)(game, rng)
        return command

    return walk


def _names(game: Game, things: object) -> list[str]:
    return sorted(game.file.names[thing] for thing in things)  # type: ignore[attr-defined]


def _things(game: Game) -> list[str]:
    """The names of all objects that can be seen or handled."""
    return _names(game, {thing for inner in game.file.contents.values() for thing in inner})


def _go(game: Game, rng: random.Random, receptacles: object) -> Iterator[str]:
    """Walks to one of these receptacles, and opens it half of the time."""
    if names := _names(game, receptacles):
        name = rng.choice(names)
        yield f"go to {name}"
        if rng.random() < 0.5:
            yield f"open {name}"


def _pick(game: Game, rng: random.Random, wanted: object) -> Iterator[str]:
    """Empties the hand, and fetches one of these things from wherever it lies."""
    yield from (
        command for command in game.admissible if command.startswith("move ") and rng.random() < 0.5
    )
    lying = [
        (game.file.names[thing], game.file.names[place])
        for place, inside in sorted(game._contents.items())
        for thing in inside
        if thing in wanted and place in game.file.location  # type: ignore[operator]
    ]
    if lying:
        thing, place = rng.choice(lying)
        yield from (
            f"go to {place}",
            f"take {thing} from {place}",
            f"open {place}",
            f"take {thing} from {place}",
        )


def doors(game: Game, rng: random.Random) -> Iterator[str]:
    """Takes out of, puts into and looks at a receptacle, open and closed, each twice."""
    file = game.file
    names = _names(game, file.openable & file.location.keys()) or _names(game, file.location)
    name = rng.choice(names)
    other_name = rng.choice(_names(game, file.location))
    inside = _names(game, game._contents.get(file.names.index(name), ())) or _things(game)
    thing = rng.choice(inside)
    held = rng.choice(_names(game, game._held) or inside)
    yield from (
        f"open {name}",
        f"take {thing} from {name}",
        f"move {held} to {name}",
        f"go to {name}",
        f"go to {name}",
    )
    for door in rng.choices(("open", "close"), k=4):
        yield from (
            f"take {thing} from {name}",
            f"{door} {name}",
            f"move {held} to {name}",
            f"examine {name}",
        )
        yield from (
            f"examine {thing}",
            f"take {thing} from {other_name}",
            f"move {thing} to {name}",
            "look",
        )


def lamps(game: Game, rng: random.Random) -> Iterator[str]:
    """Uses, examines and tries to take lamps, near and far, with full and empty hands."""
    lights = _names(game, game.file.toggleable) or _things(game)
    for lamp in rng.sample(lights, min(2, len(lights))):
        places = [
            place
            for place, inside in game._contents.items()
            if game.file.names.index(lamp) in inside
        ]
        yield f"use {lamp}"
        yield from _go(game, rng, places)
        yield from (
            f"use {lamp}",
            f"examine {lamp}",
            f"use {lamp}",
            "look",
            f"use {lamp} 1",
            f"slice {lamp} with {lamp}",
        )
        yield from (f"take {lamp} from {name}" for name in _names(game, places))
    yield from _pick(game, rng, game.file.pickupable)
    yield from (f"use {lights[0]}", "inventory", f"examine {lights[-1]}")


def knives(game: Game, rng: random.Random) -> Iterator[str]:
    """Cuts objects near, far and in the hand, and the knife itself, with and without a knife."""
    knife = rng.choice(_names(game, game.file.knives) or _things(game))
    food = rng.choice(_names(game, game.file.sliceable) or _things(game))
    cuts = (
        f"slice {food} with {knife}",
        f"slice {knife} with {knife}",
        f"slice {knife} with {food}",
    )
    yield from cuts
    yield from _pick(game, rng, game.file.knives)
    yield from (*cuts, "inventory")
    homes = [
        place for place, inside in game._contents.items() if game.file.names.index(food) in inside
    ]
    yield from _go(game, rng, homes)
    yield from (*cuts, cuts[0], f"examine {food}", f"examine {knife}")
    yield from _pick(game, rng, game.file.sliceable)
    yield from (*cuts, *(f"examine {name}" for name in _names(game, game._held)), "inventory")


def appliances(game: Game, rng: random.Random) -> Iterator[str]:
    """Cleans, heats and cools the held object, at the right and the wrong receptacles."""
    file = game.file
    yield from _pick(
        game, rng, rng.choice((file.cleanable, file.heatable, file.coolable, file.pickupable))
    )
    tools = [*file.washers, *file.heaters, *file.coolers]
    for tool in rng.choices(tools or list(file.location), k=3):
        thing = rng.choice(_names(game, game._held) or _things(game))
        commands = [f"{verb} {thing} with {file.names[tool]}" for verb in ("clean", "heat", "cool")]
        yield from commands
        yield from _go(game, rng, [tool])
        yield from (
            *commands,
            f"examine {thing}",
            *commands,
            f"examine {thing}",
            f"use {file.names[tool]}",
            "inventory",
        )


def vessels(game: Game, rng: random.Random) -> Iterator[str]:
    """Treats bowls, boxes and mugs as objects, and as receptacles, which they are not."""
    vessel = rng.choice(_names(game, game.file.vessels) or _things(game))
    thing = rng.choice(_things(game))
    strange = (
        f"move {thing} to {vessel}",
        f"take {thing} from {vessel}",
        f"open {vessel}",
        f"close {vessel}",
    )
    yield from (f"go to {vessel}", *strange, f"examine {vessel}")
    yield from _pick(game, rng, game.file.vessels)
    yield from (*(f"examine {name}" for name in _names(game, game._held)), *strange)
    yield from _pick(game, rng, game.file.pickupable)
    yield from (f"move {name} to {vessel}" for name in _names(game, game._held))


def spelling(game: Game, rng: random.Random) -> Iterator[str]:
    """Commands that are nearly right."""
    for _ in range(6):
        command = rng.choice(game.admissible)
        yield rng.choice(SPELLINGS)(command)
        yield rng.choice(OUT_OF_PLACE)
    yield rng.choice(game.admissible)


SCENES = (doors, lamps, knives, appliances, vessels, spelling)
