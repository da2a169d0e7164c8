"""Declarations of settings: default, meaning, allowed values."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """A condition on a single value.

    Attributes:
      requirement: Text that completes "must be ...".
      accepts: Function from a value to True if the value keeps to the rule.
    """

    requirement: str
    accepts: Callable[[Any], bool]


def one_of(*values: Any) -> Rule:
    """The value is one of these."""
    return Rule(f"one of {', '.join(map(str, values))}", lambda value: value in values)


def at_least(minimum: int) -> Rule:
    """The value is no less than a minimum."""
    return Rule(f"at least {minimum}", lambda value: value >= minimum)


def tuple_of(rule: Rule, kind: type) -> Rule:
    """Every element of a tuple keeps to type and rule."""
    return Rule(
        f"a tuple, each {rule.requirement}",
        # The type first: the rule may compare, and text is not comparable with a number.
        lambda value: all(type(element) is kind and rule.accepts(element) for element in value),
    )


ANY = Rule("", lambda value: True)
POSITIVE = Rule("greater than 0", lambda value: value > 0)
NOT_NEGATIVE = Rule("0 or greater", lambda value: value >= 0)
POSITIVE_FRACTION = Rule("greater than 0, at most 1", lambda value: 0 < value <= 1)
FRACTION = Rule("from 0 to 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting.

    Attributes:
      default: Value where the user gives none; its type is the type of the setting.
      help: Meaning, for the documentation.
      rule: Condition that a value must keep to.
    """

    default: Any
    help: str
    rule: Rule = ANY

    def complaint(self, value: Any) -> str:
        """Returns the reason why a value is invalid by itself, or "" if it is valid."""
        kind = type(self.default)
        # An int is a valid float, but a bool is no valid int: the types are compared, not classes.
        if type(value) is not kind and not (kind is float and type(value) is int):
            return f"must be of type {kind.__name__}"
        # Rules compare, and every comparison with NaN is false: `0 < nan` fails with a misleading
        # text.
        if isinstance(value, float) and not math.isfinite(value):
            return "must be finite"
        return "" if self.rule.accepts(value) else f"must be {self.rule.requirement}"
