"""The room of a game, the display names in it, and its PDDL problem."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gigpo_jax.envs.alfworld.data.package import Package
from gigpo_jax.envs.alfworld.data.scenes import Receptacle
from gigpo_jax.envs.alfworld.tasks import Goal

_MANGLED_CHARACTERS = (
    ("|", "_bar_"),
    ("+", "_plus_"),
    ("-", "_minus_"),
    (".", "_dot_"),
    (",", "_comma_"),
)
# Fact -> the package's table of the types that it holds for.
_ABILITIES = (
    ("cleanable", "Cleanable"),
    ("heatable", "Heatable"),
    ("coolable", "Coolable"),
    ("sliceable", "Sliceable"),
)


@dataclass(frozen=True)
class Thing:
    """An object.

    Attributes:
      id: Raw name, such as "Mug|-03.07|-05.66|+07.85".
      type: Type, such as "Mug".
      place: Raw id of the receptacle that holds it at the start.
    """

    id: str
    type: str
    place: str


@dataclass(frozen=True)
class FurnishedRoom:
    """The start of a game.

    Attributes:
      scene: Number of the floor plan.
      receptacles: Receptacles, sorted by id.
      things: Objects, sorted by id.
      start: Raw name of the agent's location; no receptacle is there.
      goal: Goal of the task.
    """

    scene: int
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    start: str
    goal: Goal


def mangle_id(raw_id: str) -> str:
    """A raw id, in the characters that PDDL allows."""
    for character, spelling in _MANGLED_CHARACTERS:
        raw_id = raw_id.replace(character, spelling)
    return raw_id


def make_display_names(raw_ids: Iterable[str]) -> dict[str, str]:
    """Names things as the game's text does, such as "drawer 3", by raw id.

    Numbers follow the sorted mangled ids of a type; the last id is number 1.
    """
    members_by_kind = defaultdict(list)
    for raw_id in raw_ids:
        mangled_id = mangle_id(raw_id).lower()
        kind = mangled_id.split("_bar_", 1)[0]
        if "basin" in mangled_id:
            kind += "basin"
        members_by_kind[kind].append((mangled_id, raw_id))
    names = {}
    for kind, members in members_by_kind.items():
        # Backwards, as the official engine counts down: the last id is number 1.
        for number, (_, raw_id) in enumerate(sorted(members, reverse=True), 1):
            names[raw_id] = f"{kind} {number}"
    return names


def _list_objects(package: Package, room: FurnishedRoom) -> list[str]:
    """The lines of the section (:objects."""
    locations = {receptacle.location for receptacle in room.receptacles} | {room.start}
    lines = ["agent1 - agent"]
    # All types of the package, used or not: `canContain` below names them.
    lines += [f"{kind}Type - otype" for kind in package.object_types]
    lines += [f"{kind}Type - rtype" for kind in package.holds]
    lines += [f"{mangle_id(thing.id)} - object" for thing in room.things]
    lines += [f"{mangle_id(receptacle.id)} - receptacle" for receptacle in room.receptacles]
    lines += [f"{mangle_id(location)} - location" for location in sorted(locations)]
    return lines


def _list_facts(package: Package, room: FurnishedRoom) -> list[str]:
    """The lines of the section (:init."""
    lines = ["(= (total-cost) 0)"]
    receptacles = {}
    for receptacle in room.receptacles:
        name = mangle_id(receptacle.id)
        receptacles[receptacle.id] = receptacle
        lines.append(f"(receptacleType {name} {receptacle.type}Type)")
        lines.append(f"(receptacleAtLocation {name} {mangle_id(receptacle.location)})")
        if receptacle.openable:
            lines.append(f"(openable {name})")
    for thing in room.things:
        lines += _list_thing_facts(package, thing, receptacles[thing.place])
    for receptacle_type, object_types in sorted(package.holds.items()):
        for object_type in object_types:
            lines.append(f"(canContain {receptacle_type}Type {object_type}Type)")
    lines.append(f"(atLocation agent1 {mangle_id(room.start)})")
    return lines


def _list_thing_facts(package: Package, thing: Thing, receptacle: Receptacle) -> list[str]:
    name = mangle_id(thing.id)
    is_toggleable = thing.type in package.actions["Toggleable"]
    lines = [
        f"(objectType {name} {thing.type}Type)",
        # Lamps stay where they are: what can be switched cannot be taken.
        f"({'toggleable' if is_toggleable else 'pickupable'} {name})",
    ]
    for fact, table in _ABILITIES:
        if thing.type in package.actions[table]:
            lines.append(f"({fact} {name})")
    if thing.type in package.containers:
        lines.append(f"(isReceptacleObject {name})")
    lines.append(f"(inReceptacle {name} {mangle_id(receptacle.id)})")
    lines.append(f"(objectAtLocation {name} {mangle_id(receptacle.location)})")
    return lines


def make_problem(package: Package, room: FurnishedRoom) -> str:
    """The room as the PDDL problem of a game file."""
    goal = room.goal
    # The package's own goal, word for word: the official engine reads it, too.
    formula = package.goals[goal.type].format(
        obj=goal.object, recep=goal.receptacle, toggle=goal.lamp
    )
    return "\n".join(
        [
            # The order of the sections is the one that the official parser accepts.
            "(define (problem plan_x)",
            "(:domain alfred)",
            "(:objects",
            *_list_objects(package, room),
            ")",
            "(:init",
            *_list_facts(package, room),
            ")",
            formula.strip("\n"),
            "",
        ]
    )
