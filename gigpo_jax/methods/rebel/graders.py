"""What an environment has for beliefs that responses state (`env.plan=belief`)."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from gigpo_jax.env_bridge.types import Observation


class GradedBeliefs(NamedTuple):
    """How an environment asks for beliefs and grades them (docs/plans.md).

    Attributes:
      request: Instruction for the beginning of the response, belief and thought.
      grader: "module:class" of a `BeliefGrader`, called without arguments for each episode.
    """

    request: str
    grader: str


class BeliefGrader(Protocol):
    """Grades the beliefs of one episode by its observations."""

    def observe(self, observation: Observation, /) -> None:
        """Reads an observation, each one of the episode in order, before its response is graded."""

    def grade(self, belief: Mapping[str, Any], feedback: str, /) -> tuple[float, float, float]:
        """Grades state, phase and prediction of a response, each from 0 to 1; it never raises.

        The response answers the newest observation, and `feedback` is the observation after its
        action.
        """

    def make_key(self) -> str:
        """The key of the newest belief."""
