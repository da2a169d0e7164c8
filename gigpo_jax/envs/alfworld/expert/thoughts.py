"""Why the expert gives a command, in words: the thoughts in examples of agents (docs/agents.md)."""

from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs, kind_of
from gigpo_jax.envs.alfworld.tasks import Goal

_DONE = {"clean": "clean", "heat": "hot", "cool": "cool"}


def thought(goal: Goal, known: Beliefs, command: str) -> str:
    """The reason for a command of the expert, "" if there is none to give; `known` is what it knew at that time."""
    verb, _, rest = command.partition(" ")
    what = rest.removeprefix("to ")
    if verb == "go":
        return f"{_plan(goal)} {_go(goal, known, what)}" if not known.here else _go(goal, known, what)
    if verb == "open":
        return f"The {what} is closed. I open it to " + ("put it in." if known.held else "look inside.")
    if verb == "take":
        return f"Here is the {what.partition(' from ')[0]}. I take it."
    if verb == "move":
        return f"This is the place for the {known.held}."
    if verb == "use":
        return f"I hold the {known.held} and the {what} is here. I turn it on to look at the {kind_of(known.held)}."
    if verb in _DONE:
        return f"Here I can {verb} the {known.held}."
    return ""


def _plan(goal: Goal) -> str:
    find = f"First I have to find {_one(goal.object)} and take it."
    if goal.lamp:
        return f"{find} Then I turn on {_one(goal.lamp)} to look at it."
    if goal.count == 2:
        return f"{find} I put it in or on {_one(goal.receptacle)}. Then I do the same with a second one."
    change = goal.change
    then = f"Then I {change.verb} it with {_one(change.tool.lower())}, and at last" if change is not None else "Then"
    return f"{find} {then} I put it in or on {_one(goal.receptacle)}."


def _one(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _go(goal: Goal, known: Beliefs, place: str) -> str:
    held, change = known.held, goal.change
    if not held:
        seen = [thing for thing, where in known.where(goal.object) if where == place]
        if seen:
            return f"I saw the {seen[0]} at the {place}. I go there to take it."
        what = f"another {goal.object}" if goal.count == 2 and known.origin else _one(goal.object)
        return f"The {place} could have {what}. I look there."
    if goal.lamp:
        lamps = [lamp for lamp, where in known.lamps.items() if where == place]
        return (
            f"I hold the {held}. I saw the {lamps[0]} at the {place}."
            if lamps
            else f"I hold the {held}. Now I look for {_one(goal.lamp)}. The {place} could have one."
        )
    if change is not None and held not in known.changed[change.verb]:
        return f"I hold the {held}. I {change.verb} it with the {place}, so I go there."
    state = f"The {held} is {_DONE[change.verb]} now." if change is not None else f"I hold the {held}."
    return f"{state} I bring it to the {place}."
