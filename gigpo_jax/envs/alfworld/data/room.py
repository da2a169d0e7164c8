"""The room of a game, the display names in it, and its PDDL problem."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gigpo_jax.envs.alfworld.data.package import Package
from gigpo_jax.envs.alfworld.data.scenes import Receptacle
from gigpo_jax.envs.alfworld.tasks import Goal

_MANGLED = (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_"), (",", "_comma_"))
_ABILITIES = (
    ("cleanable", "Cleanable"),
    ("heatable", "Heatable"),
    ("coolable", "Coolable"),
    ("sliceable", "Sliceable"),
)


@dataclass(frozen=True)
class Thing:
    """An object."""

    id: str  # raw name, such as "Mug|-03.07|-05.66|+07.85"
    type: str  # such as "Mug"
    place: str  # raw id of the receptacle it lies in at the start


@dataclass(frozen=True)
class Room:
    """The start of a game."""

    scene: int  # number of the floor plan
    receptacles: tuple[Receptacle, ...]  # sorted by id
    things: tuple[Thing, ...]  # sorted by id
    start: str  # raw name of the agent's location, where no receptacle is
    goal: Goal  # of the task


def mangled(raw: str) -> str:
    """A raw id, in the characters that PDDL allows."""
    for plain, spelled in _MANGLED:
        raw = raw.replace(plain, spelled)
    return raw


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Raw id -> the name that the game shows, such as "drawer 3".

    Numbers follow the sorted mangled ids of a type; the last one is number 1.
    """
    kinds = defaultdict(list)
    for raw in ids:
        low = mangled(raw).lower()
        kind = low.split("_bar_", 1)[0] + ("basin" if "basin" in low else "")
        kinds[kind].append((low, raw))
    names = {}
    for kind, members in kinds.items():
        for number, (_, raw) in zip(range(len(members), 0, -1), sorted(members)):
            names[raw] = f"{kind} {number}"
    return names


def _objects(package: Package, room: Room) -> list[str]:
    locations = sorted({place.location for place in room.receptacles} | {room.start})
    lines = ["agent1 - agent"]
    lines += [f"{kind}Type - otype" for kind in package.object_types]
    lines += [f"{kind}Type - rtype" for kind in package.holds]
    lines += [f"{mangled(thing.id)} - object" for thing in room.things]
    lines += [f"{mangled(place.id)} - receptacle" for place in room.receptacles]
    return lines + [f"{mangled(location)} - location" for location in locations]


def _facts(package: Package, room: Room) -> list[str]:
    lines = ["(= (total-cost) 0)"]
    where = {}
    for place in room.receptacles:
        name = mangled(place.id)
        where[place.id] = (name, mangled(place.location))
        lines.append(f"(receptacleType {name} {place.type}Type)")
        lines.append(f"(receptacleAtLocation {name} {mangled(place.location)})")
        if place.openable:
            lines.append(f"(openable {name})")
    for thing in room.things:
        name = mangled(thing.id)
        place_name, location = where[thing.place]
        lines.append(f"(objectType {name} {thing.type}Type)")
        lines.append(f"({'toggleable' if thing.type in package.actions['Toggleable'] else 'pickupable'} {name})")
        lines += [f"({fact} {name})" for fact, table in _ABILITIES if thing.type in package.actions[table]]
        if thing.type in package.containers:
            lines.append(f"(isReceptacleObject {name})")
        lines.append(f"(inReceptacle {name} {place_name})")
        lines.append(f"(objectAtLocation {name} {location})")
    lines += [
        f"(canContain {place}Type {kind}Type)" for place, kinds in sorted(package.holds.items()) for kind in kinds
    ]
    lines.append(f"(atLocation agent1 {mangled(room.start)})")
    return lines


def problem_pddl(package: Package, room: Room) -> str:
    """The room as the PDDL problem of a game file."""
    goal = room.goal
    return "\n".join(
        [
            "(define (problem plan_x)",
            "(:domain alfred)",
            "(:objects",
            *_objects(package, room),
            ")",
            "(:init",
            *_facts(package, room),
            ")",
            package.goals[goal.type].format(obj=goal.object, recep=goal.receptacle, toggle=goal.lamp).strip("\n"),
            "",
        ]
    )
