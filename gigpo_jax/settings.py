"""What is declared of a setting: default, meaning, allowed values."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """A condition on a single value.

    Attributes:
      says: completes "must be ...".
      holds: value -> whether it keeps to the rule.
    """

    says: str
    holds: Callable[[Any], bool]


def one_of(*values: Any) -> Rule:
    """The value is one of these."""
    return Rule(f"one of {', '.join(map(str, values))}", lambda value: value in values)


def at_least(least: int) -> Rule:
    """The value is no less than this."""
    return Rule(f"at least {least}", lambda value: value >= least)


def each(inner: Rule, kind: type) -> Rule:
    """Every element of a tuple is of a type and keeps to a rule."""
    return Rule(f"a tuple, each {inner.says}", lambda value: all(type(v) is kind and inner.holds(v) for v in value))


ANY = Rule("", lambda value: True)
POSITIVE = Rule("greater than 0", lambda value: value > 0)
NOT_NEGATIVE = Rule("0 or greater", lambda value: value >= 0)
PART = Rule("greater than 0, at most 1", lambda value: 0 < value <= 1)
FRACTION = Rule("from 0 to 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True)
class Setting:
    """What is known of a setting.

    Attributes:
      default: its value where the user gives none; its type is the type of the setting.
      help: what it means.
      rule: what a value must keep to.
    """

    default: Any
    help: str
    rule: Rule = ANY

    def complaint(self, value: Any) -> str:
        """What is wrong with a value by itself; "" if nothing is."""
        kind = type(self.default)
        if type(value) is not kind and not (kind is float and type(value) is int):
            return f"must be of type {kind.__name__}"
        if isinstance(value, float) and not math.isfinite(value):
            return "must be finite"
        return "" if self.rule.holds(value) else f"must be {self.rule.says}"
