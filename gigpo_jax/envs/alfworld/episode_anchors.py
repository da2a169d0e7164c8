"""Anchor states of ALFWorld other than the raw feedback.

The anchor "state" needs no feedback: `engine.whole_state.describe_state`. The anchor "belief" is
what an agent knows after all that it saw: `expert.beliefs.Beliefs.describe`.
"""

import re

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.alfworld.engine.game import NOTHING_HAPPENS, Game
from gigpo_jax.envs.alfworld.engine.whole_state import describe_state
from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs

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


class EpisodeAnchors:
    """The anchor states of one episode; arguments and errors as for `make`."""

    def __init__(self, anchor: str, engine: str) -> None:
        if anchor == "state" and engine != "native":
            raise InputError(
                "only the native engine knows the state",
                key="config.env.anchor",
                value=repr(anchor),
                fix="use engine='native', or feedback+inventory+sticky",
            )
        self._name = anchor
        self._anchor = None if anchor in ("state", "belief") else Anchor(anchor)
        self._beliefs: Beliefs | None = None

    def describe(self, observation: Observation, game: object, *, is_first: bool) -> str:
        """The anchor of an observation; a game's first one begins a new episode."""
        feedback = observation.text
        if self._anchor is not None:
            return self._anchor.reset(feedback) if is_first else self._anchor.step(feedback)
        if self._name == "state":
            assert isinstance(game, Game)
            return describe_state(game)
        if is_first or self._beliefs is None:
            self._beliefs = Beliefs(feedback)
        self._beliefs.update(observation)
        return self._beliefs.describe()
