"""What the teacher of SERL reads, by hand: two episodes in which a task is not done, then one in
which it is.
"""

import dataclasses

import numpy as np
import pytest

from gigpo_jax.methods.serl.advantages import CONTEXTS
from gigpo_jax.methods.serl.hindsight import TITLES, Hindsight, remove_thoughts
from gigpo_jax.trajectory import Step, Turn
from tests.turns import make_step

NOTHING = np.zeros(0, np.int32)
FEEDBACK, NEXT, FUTURE, SUCCESS, CANDIDATES = TITLES.values()


def make_turn(prompt: str, action: str, feedback: str, anchor: str, reward: float = 0.0) -> Turn:
    return Turn(
        prompt_tokens=NOTHING,
        response_tokens=NOTHING,
        logprobs=NOTHING,
        prompt=prompt,
        response=f"<think>why {action}</think> <action>{action}</action>",
        action=action,
        valid=True,
        admissible=None,
        observation=prompt,
        anchor=anchor,
        reward=reward,
        penalty=0.0,
        finish_reason="stop",
        version=0,
        feedback=feedback,
    )


def make_steps() -> list[Step]:
    """Group 0: episode 0 fails, 1 fails after another action, 2 wins; group 1: one that fails."""
    episodes = [
        (0, False, [("p0", "Go  west", "A wall.", "hall", 0.0), ("p1", "wait", "", "wall", 0.0)]),
        (0, False, [("p0", "go east", "Fire!", "hall", -1.0)]),
        (0, True, [("p0", "go west", "A door.", "hall", 0.0), ("p2", "open", "Done.", "door", 10)]),
        (1, False, [("p0", "go west", "A wall.", "hall", 0.0)]),
    ]
    steps = []
    for trajectory, (group, won, turns) in enumerate(episodes):
        for number, turn in enumerate(turns):
            steps.append(make_step(trajectory, number, make_turn(*turn), group=group, won=won))
    return steps


def describe(context: str, row: int) -> str:
    steps = make_steps()
    return Hindsight(steps, context).describe(steps[row])


WON = "Step 1\nResponse:\n<action>go west</action>\n\nStep 2\nResponse:\n<action>open</action>"
WAITED = "Step 2\nResponse:\n<action>wait</action>"


@pytest.mark.parametrize(
    ("context", "row", "expected"),
    [
        ("immediate_feedback", 0, f"{FEEDBACK}\nA wall."),
        ("immediate_feedback", 1, ""),  # the environment answered nothing
        ("next_observation", 0, f"{NEXT}\np1"),
        ("next_observation", 4, f"{NEXT}\nDone."),  # the last step: no prompt follows
        ("next_observation", 1, ""),
        ("future_trajectory", 0, f"{FUTURE}\n{WAITED}"),
        ("future_trajectory", 4, ""),
        ("successful_sample_or_immediate_feedback", 0, f"{SUCCESS}\n{WON}"),
        # The only success of the group is its own; group 1 has none.
        ("successful_sample_or_immediate_feedback", 3, f"{FEEDBACK}\nA door."),
        ("successful_sample_or_immediate_feedback", 5, f"{FEEDBACK}\nA wall."),
        ("successful_sample_immediate_feedback", 0, f"{SUCCESS}\n{WON}\n\n{FEEDBACK}\nA wall."),
        ("successful_sample_immediate_feedback", 1, ""),
        ("successful_sample_immediate_feedback", 5, ""),
        ("successful_sample_next_observation", 0, f"{SUCCESS}\n{WON}\n\n{NEXT}\np1"),
        ("successful_sample_future_trajectory", 2, ""),  # nothing follows
        ("successful_sample_future_trajectory", 0, f"{SUCCESS}\n{WON}\n\n{FUTURE}\n{WAITED}"),
        (
            "successful_sample_future_trajectory_immediate_feedback",
            0,
            f"{SUCCESS}\n{WON}\n\n{FUTURE}\n{WAITED}\n\n{FEEDBACK}\nA wall.",
        ),
        (
            "successful_sample_future_trajectory_next_observation",
            0,
            f"{SUCCESS}\n{WON}\n\n{FUTURE}\n{WAITED}\n\n{NEXT}\np1",
        ),
    ],
)
def test_contexts_of_a_step(context: str, row: int, expected: str) -> None:
    assert describe(context, row) == expected


# In the hall of group 0: west twice (returns 0 and 10), east once (return -1).
WEST = (
    "- go west: tried 2 times, the task was done in 1, mean return 5.0000\n"
    "  best try: done, return 10.0000\n"
    "  worst try: not done, return 0.0000"
)
EAST = (
    "- go east: tried 1 times, the task was done in 0, mean return -1.0000\n"
    "  best try: not done, return -1.0000\n"
    "  worst try: not done, return -1.0000"
)


@pytest.mark.parametrize(
    ("context", "row", "expected"),
    [
        (
            "anchor_immediate_feedback",
            2,
            f"{FEEDBACK}\ngo west: A wall.\ngo west: A door.\ngo east: Fire!",
        ),
        ("anchor_immediate_feedback", 1, ""),
        (
            "anchor_next_observation",
            0,
            f"{CANDIDATES}\n{WEST}\n  next observation, best try:\np2\n"
            "  next observation, worst try:\np1\n\n"
            f"{EAST}\n  next observation, best try:\nFire!",
        ),
        (
            "anchor_future_trajectory",
            0,
            f"{CANDIDATES}\n{WEST}\n  afterwards, where the task was done:\n"
            "Step 2\nResponse:\n<action>open</action>\n"
            f"  afterwards, where the task was not done:\n{WAITED}\n\n"
            f"{EAST}\n  afterwards, where the task was not done:\nthe episode ended with it",
        ),
        (
            "anchor_successful_sample_or_immediate_feedback",
            0,
            f"{CANDIDATES}\n{WEST}\n\n{EAST}\n\n{SUCCESS}\n{WON}",
        ),
        (
            "anchor_successful_sample_or_immediate_feedback",
            3,
            f"{CANDIDATES}\n{WEST}\n  answer, best try:\nA door.\n  answer, worst try:\nA wall.\n\n"
            f"{EAST}\n  answer, best try:\nFire!",
        ),
        (
            "anchor_successful_sample_immediate_feedback",
            0,
            f"{CANDIDATES}\n{WEST}\n  answer, best try:\nA door.\n  answer, worst try:\nA wall.\n\n"
            f"{EAST}\n  answer, best try:\nFire!\n\n{SUCCESS}\n{WON}",
        ),
    ],
)
def test_contexts_of_a_state(context: str, row: int, expected: str) -> None:
    assert describe(context, row) == expected


def test_every_context_has_a_form_for_states() -> None:
    for context in CONTEXTS:
        for row in range(len(make_steps())):
            if context != "immediate_feedback":
                assert describe(f"anchor_{context}", row).startswith(f"{CANDIDATES}\n- ")


def test_equal_states_of_other_groups_are_other_states() -> None:
    assert describe("anchor_immediate_feedback", 5) == f"{FEEDBACK}\ngo west: A wall."


def test_thoughts_are_removed_in_linear_time() -> None:
    assert remove_thoughts(" <think>a</think> b <think>\nc</think>\nd ") == "b d"
    assert remove_thoughts("<think>a") == "<think>a"
    assert remove_thoughts("a</think>b") == "a</think>b"
    assert remove_thoughts("<think>" * 200_000).startswith("<think>")  # minutes in quadratic time
    step = make_steps()[0]
    shown = dataclasses.replace(step.turn, response="<think>x</think>" * 3 + "y")
    steps = [step, dataclasses.replace(step, step=1, turn=shown)]
    assert Hindsight(steps, "future_trajectory").describe(step).endswith("\ny")
