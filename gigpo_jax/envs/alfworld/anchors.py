"""Anchor states of ALFWorld: GiGPO compares the steps of a group that have the same anchor.

The published anchor is the raw feedback. It lacks the inventory and, after a command without effect, the place; the
additions below make groups smaller.
"""

import re

from gigpo_jax.errors import InputError

NOTHING_HAPPENS = "Nothing happens."
ADDITIONS = {
    "spaces": "runs of white space count as one space",
    "inventory": "what the agent carries is part of the state",
    "sticky": f"after {NOTHING_HAPPENS!r} the state is what it was",
}
_PICKED_UP = re.compile(r"You pick up the (.+?) from the .+\.")
_PUT_DOWN = re.compile(r"You move the .+? to the .+\.")


class Anchor:
    """Turns the feedback of one episode into anchor states.

    `spec` is "feedback", or with additions such as "feedback+inventory+sticky"; InputError for an unknown word.
    """

    def __init__(self, spec: str = "feedback"):
        base, *extra = spec.split("+") if isinstance(spec, str) else [""]
        unknown = [word for word in extra if word not in ADDITIONS]
        if base != "feedback" or unknown:
            raise InputError(f"anchor={spec!r}: write feedback, or feedback+X with X in {', '.join(sorted(ADDITIONS))}")
        self._extra = frozenset(extra)
        self._held = self._last = ""

    def reset(self, feedback: str) -> str:
        self._held = self._last = ""
        return self.step(feedback)

    def step(self, feedback: str) -> str:
        if found := _PICKED_UP.fullmatch(feedback):
            self._held = found.group(1)
        elif _PUT_DOWN.fullmatch(feedback):
            self._held = ""
        if "sticky" in self._extra and feedback == NOTHING_HAPPENS and self._last:
            return self._last
        state = " ".join(feedback.split()) if "spaces" in self._extra else feedback
        if "inventory" in self._extra:
            state += f"\ncarrying: {self._held or 'nothing'}"
        self._last = state
        return state
