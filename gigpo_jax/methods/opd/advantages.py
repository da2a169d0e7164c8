"""On-policy distillation: a frozen teacher scores every token that the policy sampled.

With response token j, the teacher pi_T and the policy pi before the update:

    A_j = outcome A + log pi_T(y_j | prompt, y_<j) - log pi(y_j | prompt, y_<j)

The mean of the log-ratio over the policy's own samples is minus the reverse KL divergence from
the teacher, so its policy gradient lowers that divergence. It has no reward and no group: with
`outcome` 0, the default, the environment only gives the states. TCOD (arXiv 2604.24005) has this
advantage, with curricula of the episodes' length that are not part of it.

A wrapper: A is the advantage of `base`. The teacher is a model with the tokenizer of the policy,
from a folder or behind servers (`gigpo_jax.learner.teachers`).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.types import StepColumns


def opd(
    columns: StepColumns,
    *,
    base: Callable[[StepColumns], Advantages],
    outcome: float,
    **settings: Any,
) -> Advantages:
    """Returns the weighted advantages of `base`; `distillation_advantages` adds the teacher.

    Args:
      columns: Columns that `base` reads.
      base: Advantage function of the outcome.
      outcome: Weight of its advantages; 0: the teacher alone.
      **settings: Settings of the teacher's term, not read.
    """
    del settings
    return jax.tree.map(lambda advantage: outcome * advantage, base(columns))


def distillation_advantages(
    advantage: Array,
    difference: Array,
    action_mask: Array | None,
    iteration: ArrayLike,
    **settings: Any,
) -> Array:
    """Adds the teacher's term to advantages of tokens.

    Args:
      advantage: [..., C] f32, weighted advantages of `base`.
      difference: [..., C] f32, nats; the teacher's log-probability less the policy's.
      action_mask: Not read: the teacher scores thoughts and actions alike.
      iteration: Not read.
      **settings: Settings of `base`, not read.

    Returns:
      [..., C] f32.
    """
    del action_mask, iteration, settings
    return advantage + difference
