"""SALT (arXiv 2510.20022): transitions that episodes share get the mean of their advantages."""

from gigpo_jax.methods.salt.advantages import salt
from gigpo_jax.rl.algorithm_types import BASE, Algorithm
from gigpo_jax.rl.shared_settings import BASE_GRPO

METHOD = Algorithm(
    advantages=salt,
    columns=(
        "action",
        "next_anchor",
    ),
    settings={BASE: BASE_GRPO},
    takes_forks=True,
)
