"""GraphGPO (arXiv 2605.26684): steps are compared by how near they come to success."""

from gigpo_jax.methods.graphgpo.advantages import graphgpo
from gigpo_jax.rl.algorithm_types import Algorithm

METHOD = Algorithm(
    advantages=graphgpo,
    columns=("won",),
    takes_forks=True,
)
