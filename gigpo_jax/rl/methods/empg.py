"""EMPG (arXiv 2509.09265): advantages are scaled by the policy's certainty, with a bonus for certain next steps.

With H_t the mean entropy of the response and h = (H - min H) / (max H - min H + 1e-8) over the rows of the batch:

    g_t  = exp(-k h_t) / mean of exp(-k h)
    A'_t = A_t g_t + zeta exp(-k_next h_(t+1))         without the bonus at a last step
    A    = A' - mean A'                                 over the rows of the batch

A wrapper: A is the advantage of `base` (GRPO and DAPO in the paper). Our choice: minimum, maximum and means are over
the batch of an iteration, not over a minibatch.
"""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp

from gigpo_jax.rl.advantages import Advantages, in_order
from gigpo_jax.rl.types import StepColumns


def empg(
    columns: StepColumns, *, base: Callable[[StepColumns], Advantages], k: float, k_next: float, zeta: float
) -> Advantages:
    """Scales the total of `base`, whose parts stay as they are."""
    plain, steps = base(columns), in_order(columns)
    valid, count = steps.valid, jnp.maximum(jnp.sum(steps.valid), 1)
    entropy = columns.entropy[steps.order]
    low = jnp.min(jnp.where(valid, entropy, jnp.inf))
    high = jnp.max(jnp.where(valid, entropy, -jnp.inf))
    h = jnp.where(valid, (entropy - low) / (high - low + 1e-8), 0.0)
    weight = jnp.where(valid, jnp.exp(-k * h), 0.0)
    bonus = steps.following(zeta * jnp.exp(-k_next * h), 0.0)
    scaled = plain.total[steps.order] * weight / (jnp.sum(weight) / count) + bonus
    scaled = jnp.where(valid, scaled, 0.0)
    return replace(plain, total=steps.restored(scaled - jnp.sum(scaled) / count))
