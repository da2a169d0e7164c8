"""EMA-GRPO (OneThinker, arXiv 2512.03043): deviations move with each task type."""

from gigpo_jax.methods.ema_grpo.advantages import ema_grpo
from gigpo_jax.rl.algorithm_types import NO_STEP, Algorithm

METHOD = Algorithm(
    advantages=ema_grpo,
    columns=("task_deviation",),
    fixed=NO_STEP | {"normalize": "mean_std"},
    signals=("gigpo_jax.methods.ema_grpo.task_deviations:TaskDeviations",),
)
