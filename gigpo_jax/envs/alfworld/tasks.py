"""The six task types: what each asks for, and the phrases that say so."""

import re
from dataclasses import dataclass

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

TASK_PREFIX = "Your task is to: "


@dataclass(frozen=True)
class Change:
    """A change of state that a task asks for before the object is put down.

    Attributes:
      verb: the command, as in "heat egg 1 with microwave 1".
      tool: type of the receptacle that does it.
      ability: name of the package's table of objects it works on.
    """

    verb: str
    tool: str
    ability: str


CHANGES = {
    "pick_clean_then_place_in_recep": Change("clean", "SinkBasin", "Cleanable"),
    "pick_heat_then_place_in_recep": Change("heat", "Microwave", "Heatable"),
    "pick_cool_then_place_in_recep": Change("cool", "Fridge", "Coolable"),
}


@dataclass(frozen=True)
class Goal:
    """A task. Types are spelled as in the floor plans when made for a game, in lower case when read from a phrase.

    Attributes:
      type: one of TASK_TYPES.
      object: type of the object to handle.
      receptacle: type of the receptacle to put it in; "" for look_at_obj_in_light.
      lamp: type of the lamp to look by; "" for all others.
    """

    type: str
    object: str
    receptacle: str = ""
    lamp: str = ""

    @property
    def change(self) -> Change | None:
        """The change of state that is asked for."""
        return CHANGES.get(self.type)

    @property
    def count(self) -> int:
        """How many objects are to be put in one receptacle."""
        return 2 if self.type == "pick_two_obj_and_place" else 1


_WORDINGS = tuple(
    (kind, re.compile(pattern + r"\.?"))
    for kind, pattern in (
        ("pick_two_obj_and_place", r"put two (?P<o>\w+) in (?P<r>\w+)"),
        ("pick_two_obj_and_place", r"find two (?P<o>\w+) and put them in (?P<r>\w+)"),
        ("pick_clean_then_place_in_recep", r"put a clean (?P<o>\w+) in (?P<r>\w+)"),
        ("pick_clean_then_place_in_recep", r"clean some (?P<o>\w+) and put it in (?P<r>\w+)"),
        ("pick_heat_then_place_in_recep", r"put a hot (?P<o>\w+) in (?P<r>\w+)"),
        ("pick_heat_then_place_in_recep", r"heat some (?P<o>\w+) and put it in (?P<r>\w+)"),
        ("pick_cool_then_place_in_recep", r"put a cool (?P<o>\w+) in (?P<r>\w+)"),
        ("pick_cool_then_place_in_recep", r"cool some (?P<o>\w+) and put it in (?P<r>\w+)"),
        ("look_at_obj_in_light", r"look at (?P<o>\w+) under the (?P<l>\w+)"),
        ("look_at_obj_in_light", r"examine the (?P<o>\w+) with the (?P<l>\w+)"),
        ("pick_and_place_simple", r"put a (?P<o>\w+) in (?P<r>\w+)"),
        ("pick_and_place_simple", r"put some (?P<o>\w+) on (?P<r>\w+)"),
    )
)


def parse_phrase(phrase: str) -> Goal | None:
    """The goal that a templated phrase such as "put a clean mug in shelf" asks for, None if it is no such phrase."""
    for kind, pattern in _WORDINGS:
        if found := pattern.fullmatch(phrase.strip()):
            words = found.groupdict()
            return Goal(kind, words["o"], words.get("r") or "", words.get("l") or "")
    return None


def task_of(feedback: str) -> str:
    """The task in words, from the first feedback of a game; "" if it names none."""
    _, found, rest = feedback.rpartition(TASK_PREFIX)
    return rest.strip().removesuffix(".") if found else ""
