"""An algorithm outside the package: GRPO with a bonus for actions that are rare in their state.

    gigpo train --config=quickstart --config.rl.settings.bonus=0.2 \\
        --config.rl.algorithm=examples.rare_actions:RARE_ACTIONS

With n(s, a) the steps of a task group that take action a in anchor state s:

    A(i,t) = A_E(i) + bonus / sqrt(n(s(i,t), a(i,t)))
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from gigpo_jax.core.settings import NOT_NEGATIVE, Setting
from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.algorithms import Algorithm
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def rare_actions(columns: StepColumns, *, bonus: float, **settings: Any) -> Advantages:
    """[N] columns -> [N] advantages; `settings` go to `gigpo_advantages`."""
    plain = gigpo(columns, **settings)
    keys = (columns.group, *columns.anchor.T, *columns.action.T)
    number = segments.number_segments(columns.mask, *keys)  # equal for equal keys
    count = segments.count_members(number, columns.mask)
    step = jnp.where(columns.mask, bonus / jnp.sqrt(jnp.maximum(count, 1)), 0.0)
    return replace(plain, total=plain.episode + step, step=step)


RARE_ACTIONS = Algorithm(
    advantages=rare_actions,
    columns=("action",),
    settings={
        "bonus": Setting(
            0.1, "bonus of an action that no other step takes in its state", NOT_NEGATIVE
        )
    },
    fixed={"step_weight": 0.0},
)
