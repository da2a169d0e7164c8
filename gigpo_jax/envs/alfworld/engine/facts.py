"""The ALFRED domain: kinds of things, predicates, actions, and facts as integers.

A fact that can change is an integer: predicate, first and second argument in fields of 20 bits.
"""

from typing import Final

# A state is a set of integers, so that copies, goal checks and membership tests are cheap.
_ARGUMENT_MASK: Final = 0xFFFFF

KINDS: Final = frozenset({"agent", "location", "receptacle", "object", "rtype", "otype"})

# Predicate -> kinds of its arguments; "any" where the domain does not restrict it.
PREDICATES: Final[dict[str, tuple[str, ...]]] = {
    "atlocation": ("agent", "location"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "openable": ("receptacle",),
    "opened": ("receptacle",),
    "inreceptacle": ("object", "receptacle"),
    "isreceptacleobject": ("object",),
    "inreceptacleobject": ("object", "object"),
    "isreceptacleobjectfull": ("object",),
    "wasinreceptacle": ("object", "receptacle"),
    "checked": ("any",),
    "examined": ("location",),
    "receptacletype": ("receptacle", "rtype"),
    "cancontain": ("rtype", "otype"),
    "objecttype": ("object", "otype"),
    "holds": ("agent", "object"),
    "holdsany": ("agent",),
    "holdsanyreceptacleobject": ("agent",),
    "full": ("receptacle",),
    "isclean": ("object",),
    "cleanable": ("object",),
    "ishot": ("object",),
    "heatable": ("object",),
    "iscool": ("object",),
    "coolable": ("object",),
    "pickupable": ("object",),
    "moveable": ("object",),
    "toggleable": ("object",),
    "ison": ("object",),
    "istoggled": ("object",),
    "sliceable": ("object",),
    "issliced": ("object",),
}

# The predicates that an action can change, numbered; the others are constant during a game.
(
    AT,
    OBJECT_AT,
    OPENED,
    IN,
    CHECKED,
    HOLDS,
    HOLDS_ANY,
    IS_CLEAN,
    IS_HOT,
    IS_COOL,
    ON,
    TOGGLED,
    SLICED,
) = range(1, 14)
FLUENTS: Final[dict[str, int]] = {
    "atlocation": AT,
    "objectatlocation": OBJECT_AT,
    "opened": OPENED,
    "inreceptacle": IN,
    "checked": CHECKED,
    "holds": HOLDS,
    "holdsany": HOLDS_ANY,
    "isclean": IS_CLEAN,
    "ishot": IS_HOT,
    "iscool": IS_COOL,
    "ison": ON,
    "istoggled": TOGGLED,
    "issliced": SLICED,
}

# The actions. Those before LOOK have one or two arguments, and a format below.
GO, OPEN, CLOSE, TAKE, MOVE, CLEAN, HEAT, COOL, USE, SLICE, EXAMINE, LOOK, INVENTORY, ASK = range(
    14
)
FORMATS: Final = (
    "go to {}",
    "open {}",
    "close {}",
    "take {} from {}",
    "move {} to {}",
    "clean {} with {}",
    "heat {} with {}",
    "cool {} with {}",
    "use {}",
    "slice {} with {}",
    "examine {}",
)


def encode_fact(predicate: int, first: int, second: int = 0) -> int:
    """The number of a fact.

    Args:
      predicate: Number of the predicate, one of `FLUENTS`.
      first: Index of the first thing.
      second: Index of the second thing; 0 for a predicate with one argument.
    """
    # Games have far fewer than 2^20 things. Numbers sort by predicate, then by things.
    return predicate << 40 | first << 20 | second


def get_predicate(fact: int) -> int:
    return fact >> 40


def get_first(fact: int) -> int:
    """Index of a fact's first thing."""
    return fact >> 20 & _ARGUMENT_MASK


def get_second(fact: int) -> int:
    """Index of a fact's second thing."""
    return fact & _ARGUMENT_MASK
