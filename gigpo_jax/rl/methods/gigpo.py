"""GiGPO (arXiv 2505.10978); the formulas stand in `gigpo_jax.rl.advantages`."""

from typing import Any

from gigpo_jax.rl.advantages import Advantages, gigpo_advantages
from gigpo_jax.rl.types import StepColumns


def gigpo(columns: StepColumns, **settings: Any) -> Advantages:
    """`gigpo_advantages` of a struct of columns; the settings are its keywords."""
    c = columns
    return gigpo_advantages(c.reward, c.penalty, c.trajectory, c.step, c.group, c.anchor, c.mask, **settings)
