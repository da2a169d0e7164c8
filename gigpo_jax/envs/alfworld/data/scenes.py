"""The rooms of the `alfworld` package's floor plans: receptacles and where they stand.

Layouts hold positions from the simulator. Some receptacles (toasters, stove burners, most garbage cans) have no
position in the layout; they get pseudo-random ones, the same on every machine.
"""

import functools
import random
import re
from dataclasses import dataclass

from gigpo_jax.envs.alfworld.data.package import Package, read_layout, read_package
from gigpo_jax.errors import InputError

SPLITS = ("train", "valid_seen", "valid_unseen")
_GRID = 0.25  # metres between the points where the agent can stand
_BURNERS = 4  # at most, where the layout has none


@dataclass(frozen=True)
class Receptacle:
    """A receptacle of a room."""

    id: str  # raw name, such as "Cabinet|+00.68|+00.50|-02.20"
    type: str  # such as "Cabinet"
    location: str  # raw name of the place before it, such as "loc|0|-5|2|30"; several may share one
    openable: bool  # whether it has a door


@dataclass(frozen=True)
class Scene:
    """A room without its objects."""

    number: int  # of its floor plan
    receptacles: tuple[Receptacle, ...]  # sorted by id
    object_types: tuple[str, ...]  # objects of the room that fit in one of its receptacles, sorted
    lamps: tuple[str, ...]  # toggleable object types of the room, sorted

    def of_type(self, kind: str) -> tuple[Receptacle, ...]:
        return tuple(place for place in self.receptacles if place.type == kind)


def location_name(x: float, z: float, rotation: float, horizon: float) -> str:
    """The raw name of a location: grid coordinates, quarter turns, camera horizon in degrees."""
    return f"loc|{round(x / _GRID)}|{round(z / _GRID)}|{round(rotation / 90) % 4}|{round(horizon)}"


def coordinate(value: float) -> str:
    """A coordinate as the raw ids have it: sign, two digits, a dot, two digits."""
    return f"{value:+06.2f}"


def _raw_receptacle(raw: str) -> tuple[str, str]:
    parts = raw.split("|")
    if re.fullmatch(r"[A-Za-z]+", parts[-1]):  # Sink|x|y|z|SinkBasin
        return raw, parts[-1]
    if parts[0] in ("Sink", "Bathtub"):
        return f"{raw}|{parts[0]}Basin", f"{parts[0]}Basin"
    return raw, parts[0]


def _unplaced(scene: int, missing: list[str], taken: set[str], openable: tuple[str, ...]) -> list[Receptacle]:
    """Receptacles without a position in the layout, with pseudo-random positions."""
    rng = random.Random(f"gigpo_jax alfworld room {scene}")
    made = []
    for kind in missing:
        for _ in range(rng.randint(2, _BURNERS) if kind == "StoveBurner" else 1):
            while True:
                x, z = rng.randrange(-900, 900) / 100, rng.randrange(-900, 900) / 100
                location = location_name(x, z, 90 * rng.randrange(4), 30)
                if location not in taken:
                    break
            taken.add(location)
            where = "|".join(coordinate(value) for value in (x, rng.randrange(0, 150) / 100, z))
            name = f"{kind[:-5]}|{where}|{kind}" if kind.endswith("Basin") else f"{kind}|{where}"
            made.append(Receptacle(name, kind, location, kind in openable))
    return made


@functools.lru_cache(maxsize=256)
def read_scene(number: int) -> Scene:
    """A room by the number of its floor plan."""
    package = read_package()
    layout, things = read_layout(number)
    places = []
    for raw in sorted(layout):
        name, kind = _raw_receptacle(raw)
        if kind in package.holds:
            places.append(Receptacle(name, kind, location_name(*layout[raw]), kind in package.openable))
    placed = {place.type for place in places}
    missing = [kind for kind in package.holds if kind in things and kind not in placed and package.holds[kind]]
    places += _unplaced(number, missing, {place.location for place in places}, package.openable)
    holdable = {kind for place in places for kind in package.holds[place.type]}
    return Scene(
        number=number,
        receptacles=tuple(sorted(places, key=lambda place: place.id)),
        object_types=tuple(kind for kind in things if kind in holdable),
        lamps=tuple(kind for kind in things if kind in package.actions["Toggleable"]),
    )


def split_scenes(package: Package, split: str) -> tuple[int, ...]:
    """The rooms of a split: `valid_unseen` has those that neither `train` nor `valid_seen` use."""
    if split not in SPLITS:
        raise InputError(f"split={split!r}: no such split; choose one of {', '.join(SPLITS)}")
    return package.test_scenes if split == "valid_unseen" else package.train_scenes
