"""EMPG (arXiv 2509.09265): certain steps count more, and steps before certain ones earn a bonus.

With H_t the mean entropy of the response and h = (H - min H) / (max H - min H + 1e-8) over the rows
of the batch:

    g_t  = exp(-k h_t) / mean of exp(-k h)
    A'_t = A_t g_t + zeta exp(-h_(t+1))                without the bonus at a last step
    A    = A' - mean A'                                 over the rows of the batch

A wrapper: A is the advantage of `base` (GRPO and DAPO in the paper). Our choice: minimum, maximum
and means are over the batch of an iteration, not over a minibatch.
"""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp

from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.neighbours import following_values
from gigpo_jax.rl.types import StepColumns

# As in a third party's code.
K_NEXT = 1.0  # factor of the next step's uncertainty
ZETA = 0.05  # weight of the bonus for a certain next step


def empg(
    columns: StepColumns,
    *,
    base: Callable[[StepColumns], Advantages],
    k: float,
) -> Advantages:
    """Scales the total of `base`, whose episode and step parts stay."""
    advantages = base(columns)
    steps = order_steps(columns)
    valid = steps.valid
    count = jnp.maximum(jnp.sum(valid), 1)

    entropy = columns.entropy[steps.order]
    low = jnp.min(jnp.where(valid, entropy, jnp.inf))
    high = jnp.max(jnp.where(valid, entropy, -jnp.inf))
    # 1e-8 is in the formula. With equal entropies h is 0, and every weight 1.
    uncertainty = jnp.where(valid, (entropy - low) / (high - low + 1e-8), 0.0)
    weight = jnp.where(valid, jnp.exp(-k * uncertainty), 0.0)
    bonus = following_values(steps, ZETA * jnp.exp(-K_NEXT * uncertainty), 0.0)

    # The weights have the mean 1 for every k: the scale of the advantages stays.
    scaled = advantages.total[steps.order] * weight / (jnp.sum(weight) / count) + bonus
    scaled = jnp.where(valid, scaled, 0.0)
    # The bonus is never negative: without the mean taken off, it would raise the probability
    # of all responses.
    return replace(advantages, total=steps.restore(scaled - jnp.sum(scaled) / count))
