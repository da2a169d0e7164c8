"""The ALFRED domain: kinds of things, predicates, actions, and the integers that stand for facts.

A fact that can change is an integer: predicate, first and second argument in fields of 20 bits. A state is a set of
such integers, so copies, goal checks and membership tests are cheap.
"""

from typing import Final

KINDS: Final = frozenset({"agent", "location", "receptacle", "object", "rtype", "otype"})

# Predicate (lower case) -> the kinds of its arguments; "any" where the domain does not restrict it.
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
AT, OBJECT_AT, OPENED, IN, CHECKED, HOLDS, HOLDS_ANY, IS_CLEAN, IS_HOT, IS_COOL, ON, TOGGLED, SLICED = range(1, 14)
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

# The actions; those before LOOK have one or two arguments.
GO, OPEN, CLOSE, TAKE, MOVE, CLEAN, HEAT, COOL, USE, SLICE, EXAMINE, LOOK, INVENTORY, ASK = range(14)
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

MASK: Final = 0xFFFFF


def code(predicate: int, first: int, second: int = 0) -> int:
    """The number of a fact; `first` and `second` are indices of things."""
    return predicate << 40 | first << 20 | second


def predicate_of(fact: int) -> int:
    return fact >> 40
