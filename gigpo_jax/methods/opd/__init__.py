"""On-policy distillation: a frozen teacher scores every token that the policy sampled."""

from gigpo_jax.core.settings import NOT_NEGATIVE, Rule, Setting
from gigpo_jax.methods.opd.advantages import distillation_advantages, opd
from gigpo_jax.rl.algorithm_types import BASE, Algorithm
from gigpo_jax.rl.shared_settings import BASE_GRPO, TEACHERS

MODEL = Rule(
    "a model folder, ORG/NAME of the Hub, or vLLM servers as http://host:port",
    lambda value: value != "",
)

# TCOD's script has no KL term beside the teacher's.
METHOD = Algorithm(
    advantages=opd,
    settings={
        BASE: BASE_GRPO,
        "teacher": Setting(
            "", "model that scores responses, with the tokenizer of the policy", MODEL
        ),
        "outcome": Setting(
            0.0, "weight of the base's advantages; 0: the teacher alone", NOT_NEGATIVE
        ),
    },
    defaults={"kl_coef": 0.0},
    token_advantages=distillation_advantages,
    signals=TEACHERS,
    changes="the advantages of tokens",
    is_graded=False,
)
