"""Advantages from the values of a critic that reads text: a proposal of this project."""

from gigpo_jax.methods.text_critic.advantages import text_critic
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.shared_settings import WHITENED

METHOD = Algorithm(
    advantages=text_critic,
    columns=("value",),
    fixed=WHITENED,
    signals=("gigpo_jax.methods.text_critic.critic:TextCritic",),
)
