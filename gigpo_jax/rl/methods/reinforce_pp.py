"""REINFORCE++ (arXiv 2501.03262), with all steps of the batch and with a group baseline.

    A = (G - mean G) / F                        over the batch                                   (eq. 9)
    A = (B - mean B) / F,  B = R - mean R       B over the batch, R over the task group           (with baseline)

Our choice: mean and F of the second form run over the steps of the batch; verl whitens over tokens.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.methods.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def reinforce_pp(columns: StepColumns, **settings: Any) -> Advantages:
    """Compares the return of a step with all steps of the batch.

    The episode part is zero; `step_weight` has no effect.
    """
    # One group with one anchor state: its step advantage is the whitened return.
    one = replace(
        columns,
        trajectory=segments.segments_of(columns.mask, columns.group, columns.trajectory),
        group=jnp.zeros_like(columns.group),
        anchor=jnp.zeros_like(columns.anchor),
    )
    step = gigpo(one, **settings).step
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step)


def reinforce_pp_baseline(columns: StepColumns, *, normalize: str, **settings: Any) -> Advantages:
    """Takes the group's mean from the return of an episode and whitens over the batch.

    The step part is zero; `gamma` and `step_weight` have no effect.
    """
    mask = columns.mask
    difference = gigpo(columns, normalize="mean", **settings).episode
    whole = jnp.where(mask, 0, mask.shape[0])
    episode = segments.compare(
        difference, difference, whole, mask, normalize=normalize, ddof=settings["ddof"], eps=1e-6
    )
    episode = jnp.where(mask, episode, 0.0)
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))
