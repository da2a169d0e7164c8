"""SERL (arXiv 2605.19447): hindsight of a copy of the policy weighs the tokens of an action."""

from gigpo_jax.core.settings import Setting, at_least, one_of
from gigpo_jax.methods.serl.advantages import CONTEXTS, hindsight_advantages, serl
from gigpo_jax.rl.algorithm_types import BASE, Algorithm
from gigpo_jax.rl.shared_settings import ACTION_SPANS, BASE_GRPO

METHOD = Algorithm(
    advantages=serl,
    settings={
        BASE: BASE_GRPO,
        # The values of the authors' scripts. Runs of other lengths need other iterations, and
        # environments without answers to an action another context.
        "iterations": Setting(
            50,
            "number of iterations in which the effect falls to 0; afterwards there is no "
            "scoring pass",
            at_least(1),
        ),
        "context": Setting(
            "immediate_feedback",
            "context that the copy reads besides the prompt",
            one_of(*CONTEXTS, *(f"anchor_{context}" for context in CONTEXTS)),
        ),
    },
    # The authors' scripts train without a KL term.
    defaults={"kl_coef": 0.0},
    token_advantages=hindsight_advantages,
    signals=(
        "gigpo_jax.methods.serl.teacher:HindsightTeacher",
        ACTION_SPANS,
    ),
    changes="the advantages of tokens",
)
