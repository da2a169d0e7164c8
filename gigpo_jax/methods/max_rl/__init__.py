"""MaxRL (arXiv 2602.02710): returns of a task group in units of their mean."""

from gigpo_jax.methods.max_rl.advantages import max_rl
from gigpo_jax.rl.algorithm_types import NO_STEP, Algorithm

# The divisor is the mean return: a standard deviation beside it would be another algorithm.
METHOD = Algorithm(advantages=max_rl, fixed=NO_STEP | {"normalize": "mean"})
