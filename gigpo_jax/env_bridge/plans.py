"""Plans: what the policy wants to do next, in its own words, which its next prompts show.

`env.plan` names a kind. Responses state a plan, or the policy writes it before its first action, as
a turn of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gigpo_jax.core.method_table import METHOD_PLANS
from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.experts import Expert
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import Compact, PromptTemplate
from gigpo_jax.env_bridge.types import Observation

Parser = Callable[[str], Response]


@dataclass(frozen=True)
class PlanKind:
    """A kind of plan; a field that is left out changes nothing.

    Attributes:
      ask: Function from a template for which `shows_plans` holds, and the environment's name, to
        the template with the request for a plan. A compact one has no requests.
      make_parser: Function from the parser of the environment's format to the parser of responses
        with plans, for which a response without a part of its plan is invalid.
      opening: Function from the template to the template of the prompt for a plan before the
        first action; None: responses state the plan.
      read: Function from an expert, the observation that it read and the action that it chose to
        its plan, "" without one. None: the expert's attribute of the kind's name.
      write: Function from a response in the environment's format, its plan and the plan before it
        to a demonstrated response.
      check: Check of the config of an environment; it raises InputError.
    """

    ask: Callable[[PromptTemplate, str], PromptTemplate] = lambda template, name: template
    make_parser: Callable[[Parser], Parser] = lambda parse: parse
    opening: Callable[[PromptTemplate], PromptTemplate] | None = None
    read: Callable[[Expert, Observation, str], str] | None = None
    write: Callable[[str, str, str | None], str] = lambda response, *plans: response
    check: Callable[[Any], None] = lambda config: None


NO_PLAN = PlanKind()
# The values of `env.plan`.
PLANS: ReferenceTable[PlanKind] = ReferenceTable(
    {"none": "gigpo_jax.env_bridge.plans:NO_PLAN"} | METHOD_PLANS
)


def shows_plans(template: PromptTemplate) -> bool:
    """Whether a template can show and request plans."""
    # A template that asks for another thought would ask for two things.
    return isinstance(template, Compact) or (
        isinstance(template, Instruct) and template.thought == Instruct.thought
    )
