"""Values of `env.anchor` in ALFWorld.

GiGPO compares the steps of a group that have the same anchor. The published anchor is the
raw feedback. It lacks the inventory and, after a command without effect, the place; the additions
below make groups smaller (`episode_anchors`).
"""

from gigpo_jax.core.settings import Rule
from gigpo_jax.envs.alfworld.engine.game import NOTHING_HAPPENS

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
