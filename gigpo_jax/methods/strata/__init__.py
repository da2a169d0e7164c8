"""StraTA (arXiv 2605.06642), its two levels: strategies of a task, episodes of a strategy."""

from gigpo_jax.methods.strata.advantages import strata
from gigpo_jax.rl.algorithm_types import NO_STEP, Algorithm

METHOD = Algorithm(
    strata,
    columns=(
        "strategy",
        "summary",
    ),
    signals=("gigpo_jax.methods.strata.strategies:Strategies",),
    fixed=NO_STEP,
)
