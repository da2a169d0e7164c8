"""Advantages from the values of a critic that reads text: a proposal of this project."""

from gigpo_jax.core.settings import FRACTION, Setting
from gigpo_jax.methods.text_critic.advantages import text_critic
from gigpo_jax.rl.algorithm_types import WHITENED, Algorithm

METHOD = Algorithm(
    advantages=text_critic,
    columns=("value",),
    settings={"lam": Setting(0.7, "lambda of GAE over steps", FRACTION)},
    fixed=WHITENED,
    signals=("gigpo_jax.methods.text_critic.critic:TextCritic",),
)
