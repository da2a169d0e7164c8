"""The exact prompt for a reflection."""

from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import Event, PromptInput
from gigpo_jax.methods.reflexion.agent import Reflection, describe_reflections

HOUSE = Instruct("You are in a house.", hidden=("help",))
REFLECTION = """\
You are in a house.
This is what you did in trial 2 of a task.
Your note after trial 1, which failed: Look into drawers.
Task: put a mug in shelf
(Steps 1 to 2 are not shown.)
Observation 2: A desk 1.
Action 3: look
Observation 3: A desk 1.
The trial ended here and failed: the task was not done. You will try the same task again, from the same start. Write a \
note to yourself for that trial, of at most five sentences: which actions were wrong or missing, and a plan that names \
the actions to take instead."""


def reflect(*notes: str) -> str:
    history = (Event("A desk 1.", "look"),)
    advice = describe_reflections(notes)
    inputs = PromptInput("put a mug in shelf", "", history, 3, "A desk 1.", None, advice=advice)
    return Reflection(HOUSE)(inputs)


def test_the_prompt_of_a_reflection() -> None:
    assert reflect("Look into drawers.") == REFLECTION


def test_a_reflection_sees_the_newest_three() -> None:
    lines = reflect("a", "b", "c", "d").splitlines()
    assert lines[1] == "This is what you did in trial 5 of a task."
    assert [line[-1] for line in lines if line.startswith("Your note")] == ["b", "c", "d"]
