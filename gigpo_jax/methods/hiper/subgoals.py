"""Subgoals that responses state (`env.plan=subgoal`), as in HiPER (arXiv 2602.16165).

Each response begins with `<switch>KEEP</switch>` or `<switch>SWITCH</switch>` and
`<subgoal>..</subgoal>` in the place of a thought; the next prompt shows the subgoal. The wording of
the request is ours.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.plans import Parser, PlanKind
from gigpo_jax.env_bridge.prompts import PromptTemplate

SUBGOAL = "subgoal"  # value of `env.plan`
_REQUEST = (
    "You work on one subgoal at a time. First write <switch>KEEP</switch> if you go on with your "
    "present subgoal, or <switch>SWITCH</switch> if you choose another one. Then write the subgoal "
    "that you work on between <subgoal> and </subgoal>. "
)
# Possessive (`*+`), and no character that begins a tag: linear time on any response.
_DECISION = re.compile(r"<switch>\s*+(KEEP|SWITCH)\s*+</switch>", re.ASCII | re.IGNORECASE)
_SUBGOAL = re.compile(r"<subgoal>([^<]*+)</subgoal>", re.ASCII | re.IGNORECASE)
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
      subgoal_end: End of the subgoal's closing tag; without one the end of the decision's, or 0.
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


def ask_subgoal(template: PromptTemplate, environment: str) -> PromptTemplate:
    """Adds the request for a subgoal."""
    del environment
    return replace(template, thought=_REQUEST) if isinstance(template, Instruct) else template


def subgoal_parser(parse: Parser) -> Parser:
    """The parser of responses with subgoals."""

    def parse_subgoal(response: str) -> Response:
        parts = read_subgoal(response)
        # The subgoal takes the place of the thought, which the environment's format may ask for.
        parsed = parse(_NO_THOUGHT + response[parts.subgoal_end :])
        is_whole = parts.decision_span is not None and parts.subgoal != ""
        return replace(parsed, valid=parsed.valid and is_whole, plan=parts.subgoal)

    return parse_subgoal


def write_subgoal(response: str, subgoal: str, earlier_subgoal: str | None) -> str:
    """Puts a subgoal in the place of an empty thought, and a switch where it differs."""
    decision = "SWITCH" if subgoal != earlier_subgoal else "KEEP"
    rest = response.removeprefix(_NO_THOUGHT)
    return f"<switch>{decision}</switch><subgoal>{subgoal}</subgoal>{rest}"


PLAN = PlanKind(ask=ask_subgoal, make_parser=subgoal_parser, write=write_subgoal)
