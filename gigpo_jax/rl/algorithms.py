"""The algorithms by name: what `rl.algorithm` and `rl.preset` of the config may say.

An algorithm is a function from step columns to advantages, with the settings it insists on; the rest comes from the
config. To add one, write a function with the arguments of `gigpo_advantages` and put it into `ALGORITHMS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from gigpo_jax.errors import InputError
from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, check_columns, gigpo_advantages

# What published implementations disagree on; docs/algorithm.md tells what each switch does.
PRESETS: dict[str, dict[str, str | int]] = {
    "paper": {"episode_stats": "trajectory", "penalty_in": "reward", "singleton_episode": "zero", "ddof": 1},
    "verl_agent": {"episode_stats": "step", "penalty_in": "row", "singleton_episode": "raw", "ddof": 1},
}


@dataclass(frozen=True)
class Algorithm:
    """How an algorithm differs from GiGPO.

    Attributes:
      advantages: takes the columns of `gigpo_advantages` and the keyword settings of preset and config.
      settings: keyword settings of `advantages` that win over preset and config.
      loss: keyword settings of `losses.policy_loss` that win over the config.
      sequence_ratio: whether the probability ratio is that of a whole response (`sequence` of `losses.policy_loss`).
    """

    advantages: Callable[..., Advantages] = gigpo_advantages
    settings: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, float] = field(default_factory=dict)
    sequence_ratio: bool = False


def rloo_advantages(
    reward: Array,
    penalty: Array,
    trajectory: Array,
    step: Array,
    group: Array,
    anchor: Array,
    mask: Array,
    **settings: Any,
) -> Advantages:
    """Compares an episode with the mean of the *other* episodes of its task (RLOO, arXiv 2402.14740, eq. 9).

    R_i - mean of R_j over j != i is n / (n - 1) times R_i - mean R over all n.

    Args:
      reward: [N] f32; all columns as for `gigpo_advantages`.
      penalty: [N] f32.
      trajectory: [N] i32.
      step: [N] i32.
      group: [N] i32.
      anchor: [N, 2] u32, not used.
      mask: [N] bool.
      **settings: as for `gigpo_advantages`; `normalize`, `episode_stats` and `step_weight` have no effect.

    Returns:
      Advantages of shape [N] with a zero step part.
    """
    settings |= {"normalize": "mean", "episode_stats": "trajectory", "step_weight": 0.0}
    plain = gigpo_advantages(reward, penalty, trajectory, step, group, anchor, mask, **settings)
    rows = mask.shape[0]
    if rows == 0:
        return plain
    index = jnp.arange(rows, dtype=jnp.int32)
    episode_id, group_id = segments.segments_of(mask, group, trajectory), segments.segments_of(mask, group)
    size = segments.segment_count(group_id, episode_id == index).astype(jnp.float32)
    # A lonely episode keeps what `singleton_episode` gave it.
    episode = plain.episode * jnp.where(size > 1.0, size / jnp.maximum(size - 1.0, 1.0), 1.0)
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))


def reinforce_pp_advantages(
    reward: Array,
    penalty: Array,
    trajectory: Array,
    step: Array,
    group: Array,
    anchor: Array,
    mask: Array,
    **settings: Any,
) -> Advantages:
    """Compares the return of a step with all steps of the batch (REINFORCE++, arXiv 2501.03262, eq. 9).

    Args:
      reward: [N] f32; all columns as for `gigpo_advantages`.
      penalty: [N] f32.
      trajectory: [N] i32.
      step: [N] i32.
      group: [N] i32, tells trajectories apart.
      anchor: [N, 2] u32, not used.
      mask: [N] bool.
      **settings: as for `gigpo_advantages`; `step_weight` has no effect.

    Returns:
      Advantages of shape [N] with a zero episode part.
    """
    check_columns(trajectory=trajectory, group=group, anchor=anchor, mask=mask)
    if mask.shape[0]:
        trajectory = segments.segments_of(mask, group, trajectory)
    # One group, one state: the step advantage is the whitened return.
    one = gigpo_advantages(
        reward, penalty, trajectory, step, jnp.zeros_like(group), jnp.zeros_like(anchor), mask, **settings
    )
    return Advantages(total=one.step, episode=jnp.zeros_like(one.step), step=one.step)


ALGORITHMS: dict[str, Algorithm] = {
    "gigpo": Algorithm(),
    "grpo": Algorithm(settings={"step_weight": 0.0}),
    # Dr. GRPO (arXiv 2503.20783): no division by the standard deviation.
    "dr_grpo": Algorithm(settings={"step_weight": 0.0, "normalize": "mean"}),
    # DAPO (arXiv 2503.14476): a higher upper clip, no KL term.
    "dapo": Algorithm(settings={"step_weight": 0.0}, loss={"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0}),
    # GSPO (arXiv 2507.18071): the ratio of whole responses is closer to 1, and so are its clips.
    "gspo": Algorithm(settings={"step_weight": 0.0}, loss={"clip_low": 3e-4, "clip_high": 4e-4}, sequence_ratio=True),
    "rloo": Algorithm(advantages=rloo_advantages),
    "reinforce_pp": Algorithm(advantages=reinforce_pp_advantages),
}


def algorithm(name: str) -> Algorithm:
    """Looks an algorithm up.

    Raises:
      InputError: there is none of that name.
    """
    if name not in ALGORITHMS:
        raise InputError(f"rl.algorithm={name!r}: no such algorithm; choose one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def make_advantages(
    name: str, preset: str, *, gamma: float, step_weight: float, normalize: str
) -> Callable[..., Advantages]:
    """Puts an algorithm together from the names and numbers of a config.

    Args:
      name: a key of `ALGORITHMS`.
      preset: a key of `PRESETS`.
      gamma: discount of the step returns.
      step_weight: weight of the step advantage.
      normalize: "mean_std" or "mean".

    Returns:
      A function of the seven columns of `gigpo_advantages`.

    Raises:
      InputError: there is no algorithm or preset of that name.
    """
    chosen = algorithm(name)
    if preset not in PRESETS:
        raise InputError(f"rl.preset={preset!r}: no such preset; choose one of {', '.join(PRESETS)}")
    config = {"gamma": gamma, "step_weight": step_weight, "normalize": normalize}
    return partial(chosen.advantages, **{**PRESETS[preset], **config, **chosen.settings})
