"""Anchor states of ALFWorld: GiGPO compares the steps of a group that have the same anchor.

The published anchor is the raw feedback. It lacks the inventory and, after a command without
effect, the place; the additions below make groups smaller. The anchor "state" needs no feedback:
`engine.game.Game.describe_state`. The anchor "belief" is what an agent knows after all that it saw:
`expert.beliefs.Beliefs.describe`.
"""

import re

from gigpo_jax.core.settings import Rule

NOTHING_HAPPENS = "Nothing happens."
ADDITIONS = {
    "spaces": "runs of white space count as one space",
    "inventory": "what the agent carries is part of the state",
    "sticky": f"after {NOTHING_HAPPENS!r} the state is what it was",
}


def _is_anchor(name: str) -> bool:
    base, *additions = name.split("+")
    return name in ("state", "belief") or (base == "feedback" and {*additions} <= ADDITIONS.keys())


ANCHOR = Rule(
    f"feedback, feedback+X with X in {', '.join(sorted(ADDITIONS))}, state, or belief", _is_anchor
)
_TAKE = re.compile(r"You pick up the (.+?) from the .+\.")
_MOVE = re.compile(r"You move the .+? to the .+\.")


class Anchor:
    """Turns the feedback of one episode into anchor states.

    Args:
      spec: "feedback", or with additions such as "feedback+inventory+sticky".
    """

    def __init__(self, spec: str = "feedback"):
        self._additions = frozenset(spec.split("+")[1:])
        self._held_object = ""
        self._state = ""

    def reset(self, feedback: str) -> str:
        self._held_object = ""
        self._state = ""
        return self.step(feedback)

    def step(self, feedback: str) -> str:
        # From the feedback: it is all that the official engine tells about the hand.
        take = _TAKE.fullmatch(feedback)
        if take:
            self._held_object = take.group(1)
        elif _MOVE.fullmatch(feedback):
            self._held_object = ""
        # The previous state has the inventory, which no command without effect changes.
        if "sticky" in self._additions and feedback == NOTHING_HAPPENS and self._state:
            return self._state
        state = feedback
        if "spaces" in self._additions:
            state = " ".join(feedback.split())
        if "inventory" in self._additions:
            state += f"\ncarrying: {self._held_object or 'nothing'}"
        self._state = state
        return state
