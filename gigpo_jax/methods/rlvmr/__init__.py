"""RLVMR (arXiv 2507.22844): steps whose responses have one tag are compared."""

from gigpo_jax.methods.rlvmr.advantages import rlvmr
from gigpo_jax.rl.algorithm_types import Algorithm

METHOD = Algorithm(
    advantages=rlvmr,
    columns=("tag", "step_reward"),
    signals=("gigpo_jax.methods.rlvmr.tags:Tags",),
)
