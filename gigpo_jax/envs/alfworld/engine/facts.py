"""The ALFRED domain: predicates that change, actions, and facts as integers.

A fact that can change is an integer: predicate, first and second argument in fields of 20 bits.
"""

from typing import Final

# A state is a set of integers, so that copies, goal checks and membership tests are cheap.
_ARGUMENT_MASK: Final = 0xFFFFF

# The predicates that an action can change and a rule or text tests, numbered.
(
    AT,
    OBJECT_AT,
    OPENED,
    IN,
    HOLDS,
    HOLDS_ANY,
    IS_CLEAN,
    IS_HOT,
    IS_COOL,
    TOGGLED,
    SLICED,
) = range(1, 12)
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
      predicate: Number of the predicate, as above.
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
