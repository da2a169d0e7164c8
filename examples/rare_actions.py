"""An algorithm outside the package: GRPO with a bonus for actions that are rare in their state.

    python -m gigpo_jax.main --config=configs/quickstart.py --config.rl.algorithm=examples.rare_actions:RARE_ACTIONS \
        --config.rl.settings.bonus=0.2

With n(s, a) the steps of a task group that take action a in anchor state s:

    A(i,t) = A_E(i) + bonus / sqrt(n(s(i,t), a(i,t)))
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.algorithms import Algorithm
from gigpo_jax.rl.methods.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns
from gigpo_jax.settings import NOT_NEGATIVE, Setting


def rare_actions(columns: StepColumns, *, bonus: float, **settings: Any) -> Advantages:
    """[N] columns -> [N] advantages; `settings` are those of `gigpo_advantages`."""
    plain = gigpo(columns, **settings)
    keys = (columns.group, *columns.anchor.T, *columns.action.T)
    number = segments.segments_of(columns.mask, *keys)  # equal for equal keys
    count = segments.segment_count(number, columns.mask)
    step = jnp.where(columns.mask, bonus / jnp.sqrt(jnp.maximum(count, 1)), 0.0)
    return replace(plain, total=plain.episode + step, step=step)


RARE_ACTIONS = Algorithm(
    advantages=rare_actions,
    needs=("action",),
    settings={"bonus": Setting(0.1, "for an action that no other step of the group takes in its state", NOT_NEGATIVE)},
    fixed={"step_weight": 0.0},
)
