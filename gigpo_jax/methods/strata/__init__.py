"""StraTA (arXiv 2605.06642), its two levels: strategies of a task, episodes of a strategy."""

from gigpo_jax.core.settings import POSITIVE_FRACTION, Setting
from gigpo_jax.methods.strata.advantages import strata
from gigpo_jax.rl.algorithm_types import NO_STEP, Algorithm

METHOD = Algorithm(
    strata,
    columns=(
        "strategy",
        "summary",
    ),
    signals=("gigpo_jax.methods.strata.strategies:Strategies",),
    settings={
        "best": Setting(
            0.5,
            "share of a strategy's episodes, the best ones, whose mean return is its own",
            POSITIVE_FRACTION,
        )
    },
    fixed=NO_STEP,
)
