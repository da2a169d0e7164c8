"""HCAPO (arXiv 2603.08754): hindsight of the policy weighs the returns of steps."""

from gigpo_jax.core.settings import FRACTION, Setting
from gigpo_jax.methods.hcapo.advantages import hcapo
from gigpo_jax.rl.algorithm_types import Algorithm

METHOD = Algorithm(
    advantages=hcapo,
    columns=("hindsight_logprob",),
    settings={
        # 0.5 is the paper's second form.
        "smooth": Setting(0.0, "share of the next step's value; 0.5: the smoothed form", FRACTION),
    },
    signals=("gigpo_jax.methods.hcapo.episode_ends:EpisodeEnds",),
)
