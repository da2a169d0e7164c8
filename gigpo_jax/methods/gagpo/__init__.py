"""GAGPO (arXiv 2605.13217): GAE on the mean returns of states."""

from gigpo_jax.methods.gagpo.advantages import gagpo
from gigpo_jax.rl.algorithm_types import ONE_EACH, Algorithm
from gigpo_jax.rl.shared_settings import STEP

METHOD = Algorithm(
    advantages=gagpo,
    # Our choice: no source that we have read names the clips, so they are from GSPO.
    fixed=STEP | {"ratio": "sequence"},
    defaults=ONE_EACH | {"clip_low": 3e-4, "clip_high": 4e-4},
    takes_forks=True,
)
