"""The phrases that name a task, in the wordings of the `alfworld` package."""

import re

from gigpo_jax.envs.alfworld.tasks import Goal

# The wordings of the package's goal library; free phrases of people fit none of them.
_WORDINGS = tuple(
    (task_type, re.compile(pattern + r"\.?"))
    for task_type, pattern in (
        ("pick_two_obj_and_place", r"put two (?P<object>\w+) in (?P<receptacle>\w+)"),
        ("pick_two_obj_and_place", r"find two (?P<object>\w+) and put them in (?P<receptacle>\w+)"),
        ("pick_clean_then_place_in_recep", r"put a clean (?P<object>\w+) in (?P<receptacle>\w+)"),
        (
            "pick_clean_then_place_in_recep",
            r"clean some (?P<object>\w+) and put it in (?P<receptacle>\w+)",
        ),
        ("pick_heat_then_place_in_recep", r"put a hot (?P<object>\w+) in (?P<receptacle>\w+)"),
        (
            "pick_heat_then_place_in_recep",
            r"heat some (?P<object>\w+) and put it in (?P<receptacle>\w+)",
        ),
        ("pick_cool_then_place_in_recep", r"put a cool (?P<object>\w+) in (?P<receptacle>\w+)"),
        (
            "pick_cool_then_place_in_recep",
            r"cool some (?P<object>\w+) and put it in (?P<receptacle>\w+)",
        ),
        ("look_at_obj_in_light", r"look at (?P<object>\w+) under the (?P<lamp>\w+)"),
        ("look_at_obj_in_light", r"examine the (?P<object>\w+) with the (?P<lamp>\w+)"),
        ("pick_and_place_simple", r"put a (?P<object>\w+) in (?P<receptacle>\w+)"),
        ("pick_and_place_simple", r"put some (?P<object>\w+) on (?P<receptacle>\w+)"),
    )
)


def parse_phrase(phrase: str) -> Goal | None:
    """Reads a task's phrase, such as "put a clean mug in shelf"; None for any other text."""
    for task_type, pattern in _WORDINGS:
        match = pattern.fullmatch(phrase.strip())
        if match:
            types = match.groupdict()
            return Goal(
                task_type, types["object"], types.get("receptacle", ""), types.get("lamp", "")
            )
    return None
