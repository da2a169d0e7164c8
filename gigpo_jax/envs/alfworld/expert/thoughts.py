"""The reasons for the expert's commands in words, and its subgoals (docs/agents.md, plans.md)."""

from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs, get_type
from gigpo_jax.envs.alfworld.tasks import Goal

_ADJECTIVES = {"clean": "clean", "heat": "hot", "cool": "cool"}


def explain_command(goal: Goal, beliefs: Beliefs, command: str) -> str:
    """Gives the reason for an expert's command, or "".

    Args:
      goal: Goal of the task.
      beliefs: Knowledge of the room before the command.
      command: Command of the expert.
    """
    verb, _, arguments = command.partition(" ")
    name = arguments.removeprefix("to ")
    if verb == "go":
        reason = _explain_go(goal, beliefs, name)
        # Before the first step nothing is in reach: the first thought has the whole plan.
        return reason if beliefs.here else f"{describe_plan(goal)} {reason}"
    if verb == "open":
        purpose = "put it in." if beliefs.held else "look inside."
        return f"The {name} is closed. I open it to {purpose}"
    if verb == "take":
        return f"Here is the {name.partition(' from ')[0]}. I take it."
    if verb == "move":
        return f"This is the place for the {beliefs.held}."
    if verb == "use":
        return (
            f"I hold the {beliefs.held} and the {name} is here. "
            f"I turn it on to look at the {get_type(beliefs.held)}."
        )
    if verb in _ADJECTIVES:
        return f"Here I can {verb} the {beliefs.held}."
    return ""


def name_subgoal(goal: Goal, beliefs: Beliefs) -> str:
    """Names the expert's present part of the task in two to four words."""
    held = beliefs.held
    if not held:
        return f"find {goal.object}"
    if get_type(held) != goal.object:
        return f"put down {get_type(held)}"
    if goal.lamp:
        return f"use {goal.lamp}"
    change = goal.change
    if change is not None and held not in beliefs.changed[change.verb]:
        return f"{change.verb} {goal.object}"
    return f"put {goal.object} in {goal.receptacle}"


def describe_plan(goal: Goal) -> str:
    """Describes the way to a goal in sentences."""
    plan = f"First I have to find {_add_article(goal.object)} and take it."
    if goal.lamp:
        return f"{plan} Then I turn on {_add_article(goal.lamp)} to look at it."
    target = _add_article(goal.receptacle)
    if goal.count == 2:
        return f"{plan} I put it in or on {target}. Then I do the same with a second one."
    if goal.change is None:
        return f"{plan} Then I put it in or on {target}."
    tool = _add_article(goal.change.tool.lower())
    return (
        f"{plan} Then I {goal.change.verb} it with {tool}, and at last I put it in or on {target}."
    )


def _add_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _explain_go(goal: Goal, beliefs: Beliefs, receptacle: str) -> str:
    held = beliefs.held
    if not held:
        return _explain_search(goal, beliefs, receptacle)
    if goal.lamp:
        for lamp, lamp_receptacle in beliefs.lamps.items():
            if lamp_receptacle == receptacle:
                return f"I hold the {held}. I saw the {lamp} at the {receptacle}."
        return (
            f"I hold the {held}. Now I look for {_add_article(goal.lamp)}. "
            f"The {receptacle} could have one."
        )
    change = goal.change
    if change is None:
        return f"I hold the {held}. I bring it to the {receptacle}."
    if held not in beliefs.changed[change.verb]:
        return f"I hold the {held}. I {change.verb} it with the {receptacle}, so I go there."
    return f"The {held} is {_ADJECTIVES[change.verb]} now. I bring it to the {receptacle}."


def _explain_search(goal: Goal, beliefs: Beliefs, receptacle: str) -> str:
    for thing, thing_receptacle in beliefs.find_objects(goal.object):
        if thing_receptacle == receptacle:
            return f"I saw the {thing} at the {receptacle}. I go there to take it."
    # Something was taken before, so this search is for the second object.
    if goal.count == 2 and beliefs.origin:
        return f"The {receptacle} could have another {goal.object}. I look there."
    return f"The {receptacle} could have {_add_article(goal.object)}. I look there."
