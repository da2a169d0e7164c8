"""Settings and signals that several algorithms share."""

from gigpo_jax.core.settings import FRACTION, Setting
from gigpo_jax.rl.algorithm_types import NO_STEP, ONE_EACH

CRITIC = "gigpo_jax.learner.signals.critic:Critic"
ACTION_SPANS = "gigpo_jax.learner.signals.action_spans:ActionSpans"
# The model that `rl.settings.teacher` names.
TEACHERS = ("gigpo_jax.learner.teachers:FrozenModel", "gigpo_jax.learner.teachers:ServedModel")
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
