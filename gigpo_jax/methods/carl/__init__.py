"""CARL (arXiv 2512.04949): credit of actions in the tree of a group's episodes."""

from gigpo_jax.methods.carl.advantages import carl
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.shared_settings import DIFFERENCES

METHOD = Algorithm(
    advantages=carl, columns=("past",), fixed=DIFFERENCES, takes_forks=True, fork_choice="entropy"
)
