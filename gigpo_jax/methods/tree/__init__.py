"""Episodes of a task as a tree: a step earns the mean return of its node."""

from gigpo_jax.methods.tree.advantages import tree
from gigpo_jax.rl.algorithm_types import NO_STEP, Algorithm

METHOD = Algorithm(advantages=tree, columns=("action",), fixed=NO_STEP)
