"""Grades of the beliefs that a policy states with `env.plan=belief`.

What a belief is about differs between environments, so each has a grader of its own
(`entry_types.StatedBeliefs`). Only the grade of the format is common.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from gigpo_jax.env_bridge.plans import read_belief
from gigpo_jax.env_bridge.types import Observation

# Those of ReBel's code (arXiv 2605.20061).
_VALID_FORMAT = 0.01
_INVALID_FORMAT = -0.05
_INADMISSIBLE_ACTION = -0.02


class BeliefGrade(NamedTuple):
    """The grade of a response with a belief.

    Attributes:
      parts: Grades of state, phase, prediction and format, the first three from 0 to 1; these are 0
        without a belief.
      key: Text that two responses share if their beliefs are compared with each other.
      is_stated: Whether the response states a belief.
    """

    parts: tuple[float, float, float, float]
    key: str
    is_stated: bool


class BeliefGrader(Protocol):
    """Grades the beliefs of one episode by its observations."""

    def observe(self, observation: Observation, /) -> None:
        """Reads an observation.

        It is called with every observation of the episode in order, before its response is graded.
        """

    def grade(self, belief: Mapping[str, Any], feedback: str, /) -> tuple[float, float, float]:
        """Grades state, phase and prediction of a response.

        Each is from 0 to 1; it never raises. The response is that to the newest observation,
        `feedback` the observation after its action.
        """

    def make_key(self) -> str:
        """The key of the newest belief."""


def grade_response(
    grader: BeliefGrader, response: str, *, valid: bool, admissible: bool | None, feedback: str
) -> BeliefGrade:
    """Grades a response.

    Args:
      grader: Grader of the episode, which has read the observation of the response.
      response: Text of the response.
      valid, admissible, feedback: See `trajectory.Turn`.
    """
    belief = read_belief(response).belief
    parts = (0.0, 0.0, 0.0) if belief is None else grader.grade(belief, feedback)
    layout = _VALID_FORMAT if valid else _INVALID_FORMAT
    if valid and admissible is False:
        layout += _INADMISSIBLE_ACTION
    return BeliefGrade((*parts, layout), grader.make_key(), belief is not None)
