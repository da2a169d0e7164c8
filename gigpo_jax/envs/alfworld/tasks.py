"""The six task types, the goals of games, and the layout of their folders."""

from dataclasses import dataclass

# Generated games take the types in turn, in this order: another one gives other games.
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

SPLITS = ("train", "valid_seen", "valid_unseen")
MANIFEST = "manifest.json"  # file of generated games, in the folder of their split
TASK_PREFIX = "Your task is to: "


@dataclass(frozen=True)
class Change:
    """Change of state required before putting the object down.

    Attributes:
      verb: Command, as in "heat egg 1 with microwave 1".
      tool: Type of the receptacle that makes the change.
      ability: Name of the package's table of the objects that can be changed.
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
    """A task, with types as in the floor plans if generated, in lower case if read from text.

    Attributes:
      type: One of `TASK_TYPES`.
      object: Type of the object.
      receptacle: Type of the target receptacle; "" for look_at_obj_in_light.
      lamp: Type of the lamp; "" for all others.
    """

    type: str
    object: str
    receptacle: str = ""
    lamp: str = ""

    @property
    def change(self) -> Change | None:
        return CHANGES.get(self.type)

    @property
    def count(self) -> int:
        """Number of objects that the target receptacle must hold."""
        return 2 if self.type == "pick_two_obj_and_place" else 1


def extract_task(feedback: str) -> str:
    """Reads the task phrase in a game's first feedback; "" if it has none."""
    # The last one: the description of the room stands before the task.
    _, prefix, phrase = feedback.rpartition(TASK_PREFIX)
    return phrase.strip().removesuffix(".") if prefix else ""
