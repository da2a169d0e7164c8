"""Advantages, losses and the train step: pure functions on arrays."""

from gigpo_jax.rl.advantages import gigpo_advantages
from gigpo_jax.rl.algorithms import make_advantages

__all__ = ["gigpo_advantages", "make_advantages"]
