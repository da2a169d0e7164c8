"""Plans: what the policy wants to do next, in its own words, which its next prompts show.

`env.plan=subgoal`: each response begins with `<switch>KEEP</switch>` or `<switch>SWITCH</switch>`
and `<subgoal>..</subgoal>` in the place of a thought, as in HiPER (arXiv 2602.16165); the next
prompt shows the subgoal.

`env.plan=strategy`: before its first action the policy writes a strategy, which all prompts of the
episode show, as in StraTA (arXiv 2605.06642). It is a turn of its own, as a summary is.

`env.plan=belief`: each response begins with `<belief>..</belief>`, a JSON object with what the
policy knows of the world, as in ReBel (arXiv 2605.20061); the next prompt shows the object.

The wording of the requests is ours.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.prompts import Compact, Instruct, PromptInput, PromptTemplate

SUBGOAL = "subgoal"
STRATEGY = "strategy"
BELIEF = "belief"
PLANS = ("none", SUBGOAL, STRATEGY, BELIEF)
_STRATEGY_REQUEST = (
    "Before you act, write a strategy for the whole task: in which order you will do what, and "
    "where you will look first. You will see it at every step. Write the strategy and nothing else."
)
_SUBGOAL_REQUEST = (
    "You work on one subgoal at a time. First write <switch>KEEP</switch> if you go on with your "
    "present subgoal, or <switch>SWITCH</switch> if you choose another one. Then write the subgoal "
    "that you work on between <subgoal> and </subgoal>. "
)
# Possessive (`*+`), and no character that begins a tag: linear time on any response.
_DECISION = re.compile(r"<switch>\s*+(KEEP|SWITCH)\s*+</switch>", re.ASCII | re.IGNORECASE)
_SUBGOAL = re.compile(r"<subgoal>([^<]*+)</subgoal>", re.ASCII | re.IGNORECASE)
_BELIEF = re.compile(r"<belief>([^<]*+)</belief>", re.ASCII | re.IGNORECASE)
_NO_THOUGHT = "<think></think>"


class Span(NamedTuple):
    """Characters of a text: from `start` up to `end`."""

    start: int
    end: int


class SubgoalResponse(NamedTuple):
    """The parts of a response with a subgoal.

    Attributes:
      switches: Whether the response chooses another subgoal; False without a decision.
      subgoal: The subgoal; "" if the response states none.
      decision_span: Characters between the tags of the decision, or None.
      subgoal_span: Characters between the tags of the subgoal, or None.
      subgoal_end: End of the subgoal's closing tag; without one that of the decision's, or 0.
    """

    switches: bool
    subgoal: str
    decision_span: Span | None
    subgoal_span: Span | None
    subgoal_end: int


def read_subgoal(response: str) -> SubgoalResponse:
    """Reads the first decision and subgoal; never raises."""
    decision = _DECISION.search(response)
    subgoal = _SUBGOAL.search(response)
    end = 0
    if subgoal is not None:
        end = subgoal.end()
    elif decision is not None:
        end = decision.end()
    return SubgoalResponse(
        switches=decision is not None and decision[1].upper() == "SWITCH",
        subgoal="" if subgoal is None else " ".join(subgoal[1].split()),
        decision_span=None if decision is None else Span(*decision.span(1)),
        subgoal_span=None if subgoal is None else Span(*subgoal.span(1)),
        subgoal_end=end,
    )


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


def stated_plan(plan: str, response: str) -> str:
    """The plan that the response of a step states.

    It is "" if it states none. `plan` is a value of `env.plan`.
    """
    if plan == BELIEF:
        return read_belief(response).text
    return read_subgoal(response).subgoal if plan == SUBGOAL else ""


def shows_plans(template: PromptTemplate) -> bool:
    """Whether a template can show and request plans."""
    # A template that asks for another thought would ask for two things.
    return isinstance(template, Compact) or (
        isinstance(template, Instruct) and template.thought == Instruct.thought
    )


def plan_template(template: PromptTemplate, plan: str, belief_request: str = "") -> PromptTemplate:
    """The template with the request for a plan.

    A compact one has no requests.

    Args:
      template: Template for which `shows_plans` holds.
      plan: Value of `env.plan`.
      belief_request: The environment's request for a belief.
    """
    if plan == SUBGOAL and isinstance(template, Instruct):
        return replace(template, thought=_SUBGOAL_REQUEST)
    if plan == BELIEF and isinstance(template, Instruct):
        return replace(template, thought=belief_request, plan_title="Your belief before this: ")
    if plan == BELIEF and isinstance(template, Compact):
        return replace(template, plan_title="belief")
    return template


@dataclass(frozen=True)
class StrategyRequest:
    """The prompt for a strategy.

    Attributes:
      template: Template of the prompts of steps, for which `shows_plans` holds.
    """

    template: PromptTemplate

    def __call__(self, inputs: PromptInput, /) -> str:
        if isinstance(self.template, Instruct):
            lines = [self.template.intro, "Your task: " + inputs.task, self.template.user(inputs)]
            return "\n".join((*lines, _STRATEGY_REQUEST))
        return self.template(inputs) + " plan"


def plan_parser(parse: Callable[[str], Response], plan: str) -> Callable[[str], Response]:
    """The parser of responses with plans.

    A response without one of its parts is invalid: decision, subgoal or belief, and valid action.

    Args:
      parse: Parser of the environment's format, whose actions stand in tags.
      plan: Value of `env.plan`.
    """
    if plan not in (SUBGOAL, BELIEF):
        return parse

    def parse_belief(response: str) -> Response:
        stated = read_belief(response)
        parsed = parse(response[stated.end :])
        return replace(parsed, valid=parsed.valid and stated.belief is not None, plan=stated.text)

    def parse_response(response: str) -> Response:
        parts = read_subgoal(response)
        # The subgoal takes the place of the thought, which the environment's format may ask for.
        parsed = parse(_NO_THOUGHT + response[parts.subgoal_end :])
        is_whole = parts.decision_span is not None and parts.subgoal != ""
        return replace(parsed, valid=parsed.valid and is_whole, plan=parts.subgoal)

    return parse_belief if plan == BELIEF else parse_response


def write_belief(response: str, belief: str) -> str:
    """Puts a belief before a response of an environment's format."""
    return f"<belief>{belief}</belief>{response}"


def write_subgoal(response: str, subgoal: str, *, switches: bool) -> str:
    """Puts a subgoal into a response of an environment's format.

    It takes the place of the empty thought.
    """
    decision = "SWITCH" if switches else "KEEP"
    rest = response.removeprefix(_NO_THOUGHT)
    return f"<switch>{decision}</switch><subgoal>{subgoal}</subgoal>{rest}"
