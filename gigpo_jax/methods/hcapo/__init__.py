"""HCAPO (arXiv 2603.08754): hindsight of the policy weighs the returns of steps."""

from gigpo_jax.methods.hcapo.advantages import hcapo
from gigpo_jax.rl.algorithm_types import Algorithm

METHOD = Algorithm(
    advantages=hcapo,
    columns=("hindsight_logprob",),
    signals=("gigpo_jax.methods.hcapo.episode_ends:EpisodeEnds",),
)
