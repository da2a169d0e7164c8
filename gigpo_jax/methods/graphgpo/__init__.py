"""GraphGPO (arXiv 2605.26684): steps are compared by how near they come to success."""

from gigpo_jax.core.settings import POSITIVE_FRACTION, Setting
from gigpo_jax.methods.graphgpo.advantages import graphgpo
from gigpo_jax.rl.algorithm_types import Algorithm

METHOD = Algorithm(
    advantages=graphgpo,
    columns=("won",),
    settings={
        # The value of a third party's code.
        "omega": Setting(
            0.1, "factor of a step's worth for each further step to success", POSITIVE_FRACTION
        ),
    },
    takes_forks=True,
)
