"""GAGPO (arXiv 2605.13217): GAE on the mean returns of states."""

from dataclasses import replace

from gigpo_jax.methods.gagpo.advantages import gagpo
from gigpo_jax.rl.algorithm_types import LAM, ONE_EACH, STEP, Algorithm

METHOD = Algorithm(
    advantages=gagpo,
    # Our choice: no source that we have read names lam or the clips, so the clips
    # are from GSPO.
    settings={"lam": replace(LAM, default=0.8)},
    fixed=STEP | {"ratio": "sequence"},
    defaults=ONE_EACH | {"clip_low": 3e-4, "clip_high": 4e-4},
    takes_forks=True,
)
