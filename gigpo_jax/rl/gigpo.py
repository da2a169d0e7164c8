"""GiGPO (arXiv 2505.10978); the formulas stand in `gigpo_jax.rl.advantages`."""

from typing import Any

from gigpo_jax.rl.advantages import Advantages, gigpo_advantages
from gigpo_jax.rl.types import StepColumns


def gigpo(columns: StepColumns, **settings: Any) -> Advantages:
    """Calls `gigpo_advantages` with the fields of `columns`, and `settings` as its keywords."""
    return gigpo_advantages(
        columns.reward,
        columns.penalty,
        columns.trajectory,
        columns.step,
        columns.group,
        columns.anchor,
        columns.mask,
        forked=columns.forked,
        **settings,
    )
