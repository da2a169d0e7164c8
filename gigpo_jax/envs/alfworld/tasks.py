"""The six task types, and the phrases that name a task."""

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
    """The change of state that a task requires before the object is put down."""

    verb: str  # the command, as in "heat egg 1 with microwave 1"
    tool: str  # type of the receptacle that does it
    ability: str  # name of the package's table of the objects that can be changed


CHANGES = {
    "pick_clean_then_place_in_recep": Change("clean", "SinkBasin", "Cleanable"),
    "pick_heat_then_place_in_recep": Change("heat", "Microwave", "Heatable"),
    "pick_cool_then_place_in_recep": Change("cool", "Fridge", "Coolable"),
}


@dataclass(frozen=True)
class Goal:
    """A task. Types are spelled as in the floor plans when a game is generated, in lower case when read from text."""

    type: str  # one of TASK_TYPES
    object: str  # type of the object
    receptacle: str = ""  # type of the target receptacle; "" for look_at_obj_in_light
    lamp: str = ""  # type of the lamp; "" for all others

    @property
    def change(self) -> Change | None:
        return CHANGES.get(self.type)

    @property
    def count(self) -> int:
        """How many objects the target receptacle must hold."""
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
    """The goal of a templated phrase such as "put a clean mug in shelf"; None for any other text."""
    for kind, pattern in _WORDINGS:
        if found := pattern.fullmatch(phrase.strip()):
            words = found.groupdict()
            return Goal(kind, words["o"], words.get("r") or "", words.get("l") or "")
    return None


def task_of(feedback: str) -> str:
    """The task phrase in the first feedback of a game; "" if it has none."""
    _, found, rest = feedback.rpartition(TASK_PREFIX)
    return rest.strip().removesuffix(".") if found else ""
