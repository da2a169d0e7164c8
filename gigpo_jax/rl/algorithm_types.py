"""What an algorithm declares, and the settings that several of them share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import Array

from gigpo_jax.core.settings import FRACTION, Rule, Setting
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import OPTIONAL_COLUMNS, OPTIONAL_FIELDS

# Names that `Algorithm.needs` may have. The learner's signals fill optional columns and fields of
# batches. "text_critic": the text critic fills the column `value`. "history": a prompt shows at
# least as many past steps as the setting `history`. The field "teacher" holds scores of a copy of
# the policy; with `FROZEN_TEACHER`, those of the model that the setting `teacher` names.
FROZEN_TEACHER = "frozen_teacher"
LESSONS = "lessons"  # prompts that show lessons of earlier episodes
NEEDS = (*OPTIONAL_COLUMNS, *OPTIONAL_FIELDS, "text_critic", "history", FROZEN_TEACHER, LESSONS)
BASE = "base"  # the setting of a wrapper that names the algorithm whose advantages it changes


@dataclass(frozen=True)
class Algorithm:
    """The differences of an algorithm to GiGPO.

    A wrapper has a setting `base`, the name of another algorithm. All fields but `advantages` are
    joined with those of the base, and its function gets `base`, a function `StepColumns` ->
    `Advantages`, and its own settings alone.

    Attributes:
      advantages: (`StepColumns`, keyword settings of preset and config) -> `Advantages`.
      needs: Some of `NEEDS`; the learner computes nothing else.
      settings: Settings that it alone has, `rl.settings` in the config, by name.
      fixed: Settings under `rl` without which it would be another algorithm; other values are
        refused.
      defaults: Defaults of settings under `rl`; values that the user gives win.
      token_weights: (action mask [R] bool of a response, its own settings as keywords) -> [R] f32,
        greater than 0: weights of the response's tokens in the loss; needs "action_mask". None: all
        are 1.
      token_advantages: Function of `LossSettings`, with its own settings as keywords; needs
        "teacher". The action mask is None unless it needs "action_mask" too.
      takes_forks: Whether its statistics of episodes leave forks out (docs/forks.md).
      fork_choice: Value of train.fork_choice without which it would be another algorithm; "": it
        needs no forks.
    """

    advantages: Callable[..., Advantages] = gigpo
    needs: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    token_weights: Callable[..., np.ndarray] | None = None
    token_advantages: Callable[..., Array] | None = None
    takes_forks: bool = False
    fork_choice: str = ""

    @property
    def needs_critic(self) -> bool:
        """True if a column holds a critic's values with targets.

        The targets come with the advantages.
        """
        # The text critic learns on the host and fills the column `value` too, but has no
        # update on devices.
        needs_values = not {"value", "token_value", "plan_value"}.isdisjoint(self.needs)
        return needs_values and "text_critic" not in self.needs


def is_served(teacher: str) -> bool:
    """Whether the setting `teacher` names servers and no model folder."""
    return teacher.startswith(("http://", "https://"))


MODEL = Rule(
    "a model folder, ORG/NAME of the Hub, or vLLM servers as http://host:port",
    lambda value: value != "",
)
NO_STEP = {"step_weight": 0.0}
# Each response counts once, as its ratio does. The authors' losses have no dual clip.
ONE_EACH = {"loss_mean": "responses", "dual_clip": 0.0}
STEP = {"step_weight": 1.0}  # the whole advantage is of the step
# Gains and outcomes have other units: both are standardised.
GAINS = NO_STEP | {"normalize": "mean_std"}
BASE_GRPO = Setting("grpo", "algorithm whose advantages are changed")
# With values of states nothing is compared within groups: other values of these would have no
# effect.
WHITENED = {"step_weight": 1.0, "normalize": "mean_std", "preset": "verl_agent"}
DIFFERENCES = STEP | {"normalize": "mean"}  # of values, as they are
BY_TURN = ONE_EACH | {"gamma": 0.99, "kl_coef": 0.001}
PER_TOKEN = ("tokens", "token_value")
LAM = Setting(1.0, "lambda of GAE; less: more weight on the critic, less variance", FRACTION)
