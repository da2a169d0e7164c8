"""The rooms of the `alfworld` package's floor plans: receptacles and where they stand.

Layouts hold positions from the simulator. Some receptacles (toasters, stove burners, most garbage
cans) have no position in the layout; they get pseudo-random ones, the same on every machine.
"""

import functools
import random
import re
from dataclasses import dataclass

from gigpo_jax.envs.alfworld.data.game_folder import check_split_name
from gigpo_jax.envs.alfworld.data.package import Package, read_layout, read_package

_GRID = 0.25  # metres between the points where the agent can stand
_MAX_BURNERS = 4  # where the layout has none


@dataclass(frozen=True)
class Receptacle:
    """A receptacle of a room.

    Attributes:
      id: Raw name, such as "Cabinet|+00.68|+00.50|-02.20".
      type: Type, such as "Cabinet".
      location: Raw name of the place before it, such as "loc|0|-5|2|30"; several may share one.
      openable: Whether it has a door.
    """

    id: str
    type: str
    location: str
    openable: bool


@dataclass(frozen=True)
class Scene:
    """A room without its objects.

    Attributes:
      number: Number of its floor plan.
      receptacles: Receptacles, sorted by id.
      object_types: Types of the room's objects that fit in one of its receptacles, sorted.
      lamps: Toggleable object types of the room, sorted.
    """

    number: int
    receptacles: tuple[Receptacle, ...]
    object_types: tuple[str, ...]
    lamps: tuple[str, ...]

    def receptacles_of_type(self, kind: str) -> tuple[Receptacle, ...]:
        return tuple(receptacle for receptacle in self.receptacles if receptacle.type == kind)


def name_location(x: float, z: float, rotation: float, horizon: float) -> str:
    """Returns a location's raw name: grid coordinates, quarter turns, camera horizon in degrees."""
    return f"loc|{round(x / _GRID)}|{round(z / _GRID)}|{round(rotation / 90) % 4}|{round(horizon)}"


def format_coordinate(value: float) -> str:
    """Writes a coordinate as the raw ids have it: a sign, two digits, a dot, two digits."""
    return f"{value:+06.2f}"


def _split_layout_id(raw_id: str) -> tuple[str, str]:
    """Returns the id and type of a layout's receptacle.

    The basin of a sink is a receptacle of its own, which some layouts name only by the sink.
    """
    fields = raw_id.split("|")
    if re.fullmatch(r"[A-Za-z]+", fields[-1]):  # Sink|x|y|z|SinkBasin
        return raw_id, fields[-1]
    if fields[0] in ("Sink", "Bathtub"):
        basin = f"{fields[0]}Basin"
        return f"{raw_id}|{basin}", basin
    return raw_id, fields[0]


def _place_unplaced(
    scene: int, kinds: list[str], locations: set[str], openable: tuple[str, ...]
) -> list[Receptacle]:
    """Makes the receptacles that have no position in the layout, at pseudo-random positions.

    Args:
      scene: Number of the floor plan; it seeds the positions.
      kinds: Types of the receptacles.
      locations: Locations in use; the new receptacles' locations are added.
      openable: Types with a door.
    """
    # By the number of the room alone: all games in a room have these receptacles at one place.
    rng = random.Random(f"gigpo_jax alfworld room {scene}")
    receptacles = []
    for kind in kinds:
        # Stoves have several burners; of other unplaced types a room has one.
        count = rng.randint(2, _MAX_BURNERS) if kind == "StoveBurner" else 1
        for _ in range(count):
            x, z, location = _draw_free_location(rng, locations)
            locations.add(location)
            height = rng.randrange(0, 150) / 100
            position = "|".join(format_coordinate(value) for value in (x, height, z))
            raw_id = f"{kind}|{position}"
            if kind.endswith("Basin"):
                # As layouts write it: Sink|x|y|z|SinkBasin.
                raw_id = f"{kind.removesuffix('Basin')}|{position}|{kind}"
            receptacles.append(Receptacle(raw_id, kind, location, kind in openable))
    return receptacles


def _draw_free_location(rng: random.Random, locations: set[str]) -> tuple[float, float, str]:
    """Draws x and z in metres, and a free location."""
    # The loop ends soon: the grid has thousands of locations, and a room takes a few dozen.
    while True:
        x = rng.randrange(-900, 900) / 100
        z = rng.randrange(-900, 900) / 100
        location = name_location(x, z, 90 * rng.randrange(4), 30)
        if location not in locations:
            return x, z, location


@functools.lru_cache(maxsize=256)
def read_scene(number: int) -> Scene:
    """Reads a room by the number of its floor plan."""
    package = read_package()
    layout, object_types = read_layout(number)
    receptacles = []
    # Sorted: receptacles must not depend on the order of keys in the package's files.
    for layout_id in sorted(layout):
        raw_id, kind = _split_layout_id(layout_id)
        # Movable receptacles such as pots are objects here, not places.
        if kind in package.holds:
            location = name_location(*layout[layout_id])
            receptacles.append(Receptacle(raw_id, kind, location, kind in package.openable))

    # Types that the room has but the layout does not place.
    placed_types = {receptacle.type for receptacle in receptacles}
    unplaced_types = [
        kind
        for kind, contents in package.holds.items()
        if contents and kind in object_types and kind not in placed_types
    ]
    locations = {receptacle.location for receptacle in receptacles}
    receptacles += _place_unplaced(number, unplaced_types, locations, package.openable)

    # An object type that no receptacle of the room can hold would have no place.
    storable_types: set[str] = set()
    for receptacle in receptacles:
        storable_types.update(package.holds[receptacle.type])
    return Scene(
        number=number,
        receptacles=tuple(sorted(receptacles, key=lambda receptacle: receptacle.id)),
        object_types=tuple(kind for kind in object_types if kind in storable_types),
        lamps=tuple(kind for kind in object_types if kind in package.actions["Toggleable"]),
    )


def list_scenes(package: Package, split: str) -> tuple[int, ...]:
    """Lists the rooms of a split; `valid_unseen` has rooms that no other split has."""
    check_split_name(split)
    return package.test_scenes if split == "valid_unseen" else package.train_scenes
