"""EMPG (arXiv 2509.09265): certain steps count more, and steps before certain ones earn a bonus."""

from gigpo_jax.core.settings import NOT_NEGATIVE, Setting
from gigpo_jax.methods.empg.advantages import empg
from gigpo_jax.rl.algorithm_types import BASE, Algorithm
from gigpo_jax.rl.shared_settings import BASE_GRPO

METHOD = Algorithm(
    advantages=empg,
    columns=("entropy",),
    settings={
        BASE: BASE_GRPO,
        # From a third party's code: the paper's value is not known to us.
        "k": Setting(
            1.0, "factor of a step's uncertainty in the exponent of its weight", NOT_NEGATIVE
        ),
    },
    signals=("gigpo_jax.learner.signals.policy_scores:PolicyScores",),
)
