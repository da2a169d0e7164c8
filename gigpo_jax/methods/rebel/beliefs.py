"""Beliefs that responses state (`env.plan=belief`), and their grades.

Each response begins with `<belief>..</belief>`, a JSON object with what the policy knows of the
world, as in ReBel (arXiv 2605.20061); the next prompt shows the object. What a belief is about
differs between environments, so each has a request and a grader of its own (`GradedBeliefs`):
those of ALFWorld are here, others are named by `Environment.plans`. Only the grade of the format is
common.
"""

import json
import re
from dataclasses import replace
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.core.references import load_reference
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.plans import Parser, PlanKind
from gigpo_jax.env_bridge.prompts import Compact, PromptTemplate
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs import registry
from gigpo_jax.methods.rebel.graders import BeliefGrader, GradedBeliefs

BELIEF = "belief"  # value of `env.plan`
# No character that begins a tag: linear time on any response.
_BELIEF = re.compile(r"<belief>([^<]*+)</belief>", re.ASCII | re.IGNORECASE)
# Of ReBel's code (arXiv 2605.20061).
_VALID_FORMAT = 0.01
_INVALID_FORMAT = -0.05
_INADMISSIBLE_ACTION = -0.02


class BeliefResponse(NamedTuple):
    """The belief of a response.

    Attributes:
      text: JSON object on one line; "" if the response states none.
      belief: The object, or None.
      end: End of its closing tag, or 0.
    """

    text: str
    belief: dict[str, Any] | None
    end: int


def read_belief(response: str) -> BeliefResponse:
    """Reads the first belief; never raises."""
    match = _BELIEF.search(response)
    if match is None:
        return BeliefResponse("", None, 0)
    text = " ".join(match[1].split())
    try:
        belief = json.loads(text)
    # Brackets in brackets, thousands deep.
    except (ValueError, RecursionError):
        belief = None
    if not isinstance(belief, dict):
        return BeliefResponse("", None, match.end())
    return BeliefResponse(text, belief, match.end())


# Environments whose beliefs are in this folder; others name theirs in `Environment.plans`.
_GRADED = {"alfworld": "gigpo_jax.methods.rebel.alfworld:BELIEFS"}


def find_beliefs(environment: str) -> GradedBeliefs | None:
    """The graded beliefs of an environment, or None."""
    reference = _GRADED.get(environment) or registry.spec(environment).plans.get(BELIEF)
    return load_reference(reference, key="config.env.plan") if reference else None


def read_expert_belief(expert: Any, observation: Observation, action: str) -> str:
    """The belief of an expert before an action, as JSON: by what it knows, or its attribute."""
    from gigpo_jax.methods.rebel.alfworld import Demonstrator, read_demonstrator

    if isinstance(expert, Demonstrator):
        return read_demonstrator(expert, observation, action)
    return getattr(expert, BELIEF, "")


def ask_belief(template: PromptTemplate, environment: str) -> PromptTemplate:
    """Adds the environment's request for a belief, and words before the present one."""
    if isinstance(template, Compact):
        return replace(template, plan_title="belief")
    beliefs = find_beliefs(environment)
    if not isinstance(template, Instruct) or beliefs is None:
        return template
    title = "Your belief before this: "
    return replace(template, thought=beliefs.request, plan_title=title)


def belief_parser(parse: Parser) -> Parser:
    """The parser of responses with beliefs."""

    def parse_belief(response: str) -> Response:
        stated = read_belief(response)
        parsed = parse(response[stated.end :])
        return replace(parsed, valid=parsed.valid and stated.belief is not None, plan=stated.text)

    return parse_belief


def write_belief(response: str, belief: str, earlier_belief: str | None) -> str:
    """Puts a belief before a response of an environment's format."""
    del earlier_belief
    return f"<belief>{belief}</belief>{response}"


def check_beliefs(config: ConfigDict) -> None:
    """Checks that an environment grades beliefs."""
    name = config.env.name
    has_grader = find_beliefs(name) is not None
    reason = f"{name} has no grader of beliefs"
    require(has_grader, config, "env.plan", reason, "use alfworld, or leave it out")


PLAN = PlanKind(
    ask=ask_belief,
    make_parser=belief_parser,
    read=read_expert_belief,
    write=write_belief,
    check=check_beliefs,
)


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
