"""REINFORCE++ (arXiv 2501.03262), with all steps of the batch and with a group baseline.

    A = (G - mean G) / F        over the batch                                         (eq. 9)
    A = (B - mean B) / F        B = R - mean R over the task group, A over the batch   (baseline)

Our choice: mean and F of the second form run over the steps of the batch; verl whitens over tokens.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.algorithm_types import NO_STEP, Algorithm
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.shared_settings import STEP
from gigpo_jax.rl.types import StepColumns


def reinforce_pp(columns: StepColumns, **settings: Any) -> Advantages:
    """Compares a step's return with the returns of all steps of the batch.

    The episode part is zero, and `step_weight` has no effect.
    """
    # One group with one anchor state: its step advantage is the whitened return.
    single_group = replace(
        columns,
        # Numbers of trajectories are distinct within a group alone: renumbered before
        # the groups are one.
        trajectory=segments.number_segments(columns.mask, columns.group, columns.trajectory),
        group=jnp.zeros_like(columns.group),
        anchor=jnp.zeros_like(columns.anchor),
    )
    step = gigpo(single_group, **settings).step
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step)


def reinforce_pp_baseline(columns: StepColumns, *, normalize: str, **settings: Any) -> Advantages:
    """Subtracts the group's mean from an episode's return and whitens over the batch.

    The step part is zero, and `gamma` and `step_weight` have no effect.
    """
    mask = columns.mask
    # Only the mean is taken off within the group; the scale is that of the batch.
    difference = gigpo(columns, normalize="mean", **settings).episode
    batch_segment = jnp.where(mask, 0, mask.shape[0])
    episode = segments.compare_values(
        difference,
        difference,
        batch_segment,
        mask,
        normalize=normalize,
        ddof=settings["ddof"],
        eps=1e-6,
    )
    episode = jnp.where(mask, episode, 0.0)
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))


METHOD = Algorithm(advantages=reinforce_pp, fixed=STEP)

WITH_BASELINE = Algorithm(advantages=reinforce_pp_baseline, fixed=NO_STEP)
