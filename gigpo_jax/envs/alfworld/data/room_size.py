"""Sizes of generated rooms."""

from dataclasses import dataclass

from gigpo_jax.core.errors import InputError


@dataclass(frozen=True)
class RoomSize:
    """The size of rooms.

    Attributes:
      receptacles: Least and greatest number; None for all that the floor plan has.
      objects: Least and greatest number; None for the usual number in such a room.
    """

    receptacles: tuple[int, int] | None = None
    objects: tuple[int, int] | None = None


SIZES = {"full": RoomSize(), "small": RoomSize(receptacles=(4, 6), objects=(3, 5))}


def make_room_size(size: str, receptacles: object = None, objects: object = None) -> RoomSize:
    """Returns a named size, its ranges replaced where given.

    A range is a number, or a (least, greatest) pair.

    Raises:
      InputError: an unknown name, or a range in which no task fits.
    """
    if size not in SIZES:
        raise InputError(
            "no such size",
            key="size",
            value=repr(size),
            fix=f"choose one of {', '.join(sorted(SIZES))}",
        )
    receptacle_range = SIZES[size].receptacles
    object_range = SIZES[size].objects
    if receptacles is not None:
        receptacle_range = _parse_range("receptacles", receptacles, 3)
    if objects is not None:
        object_range = _parse_range("objects", objects, 2)
    return RoomSize(receptacle_range, object_range)


def _parse_range(key: str, value: object, minimum: int) -> tuple[int, int]:
    """Reads a number as an equal pair, or a pair.

    Raises InputError for anything else.
    """
    bounds = tuple(value) if isinstance(value, list | tuple) else (value, value)
    match bounds:
        case (int(low), int(high)) if minimum <= low <= high:
            return low, high
    raise InputError(
        f"must be a number or a (least, greatest) pair, at least {minimum}",
        key=key,
        value=repr(value),
    )
