"""Strategies before the first action (`env.plan=strategy`), as in StraTA (arXiv 2605.06642).

All prompts of the episode show the strategy. It is a turn of its own, as a summary is. The wording
of the request is ours.
"""

from dataclasses import dataclass

from ml_collections import ConfigDict

from gigpo_jax.config.step_requirements import require_steps
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.plans import PlanKind
from gigpo_jax.env_bridge.prompts import PromptInput, PromptTemplate
from gigpo_jax.methods.mem_agent.keys import check_summary_length

STRATEGY = "strategy"  # value of `env.plan`
_REQUEST = (
    "Before you act, write a strategy for the whole task: in which order you will do what, and "
    "where you will look first. You will see it at every step. Write the strategy and nothing else."
)


@dataclass(frozen=True)
class StrategyRequest:
    """The prompt for a strategy.

    Attributes:
      template: Template of the prompts of steps, for which `plans.shows_plans` holds.
    """

    template: PromptTemplate

    def __call__(self, inputs: PromptInput, /) -> str:
        if isinstance(self.template, Instruct):
            lines = [self.template.intro, "Your task: " + inputs.task, self.template.user(inputs)]
            return "\n".join((*lines, _REQUEST))
        return self.template(inputs) + " plan"


def check_strategy(config: ConfigDict) -> None:
    """Checks that an environment's episodes have room for a strategy, and steps."""
    check_summary_length(config)
    require_steps(config, "env.plan", "a strategy", "leave it out")


PLAN = PlanKind(opening=StrategyRequest, check=check_strategy)
