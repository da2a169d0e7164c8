"""OPRL, also iStar (arXiv 2509.19199): implicit rewards of a trained copy."""

from gigpo_jax.core.settings import POSITIVE, Setting
from gigpo_jax.methods.oprl.advantages import oprl
from gigpo_jax.rl.algorithm_types import ONE_EACH, Algorithm

# The weight, the ratio of responses and the missing KL term are the paper's.
METHOD = Algorithm(
    advantages=oprl,
    columns=("implicit_reward",),
    settings={
        # The paper trains the copy as the policy.
        "copy_lr": Setting(1e-6, "learning rate of the copy", POSITIVE),
    },
    defaults=ONE_EACH | {"kl_coef": 0.0, "ratio": "sequence"},
    signals=("gigpo_jax.methods.oprl.implicit_rewards:ImplicitRewards",),
)
