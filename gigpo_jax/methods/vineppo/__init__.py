"""VinePPO (arXiv 2410.01679): values of states from continuations of each."""

from gigpo_jax.methods.vineppo.advantages import vineppo
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.shared_settings import DIFFERENCES

METHOD = Algorithm(
    advantages=vineppo,
    columns=(
        "past",
        "forked",
    ),
    fixed=DIFFERENCES,
    takes_forks=True,
    fork_choice="uniform",
)
