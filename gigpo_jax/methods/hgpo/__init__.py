"""HGPO (arXiv 2602.22817): step advantages in nested groups of equal recent history."""

from gigpo_jax.core.settings import NOT_NEGATIVE, Setting
from gigpo_jax.methods.hgpo.advantages import hgpo
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.shared_settings import STEP

METHOD = Algorithm(
    advantages=hgpo,
    check="gigpo_jax.methods.hgpo.check:check",
    settings={
        "history": Setting(2, "number of past steps that the deepest level compares", NOT_NEGATIVE),
        "alpha": Setting(1.0, "exponent of the levels' weights", NOT_NEGATIVE),
    },
    fixed=STEP,
)
