"""The algorithms by name: the values of `rl.algorithm` and `rl.preset`.

An algorithm is a function (`StepColumns`, keyword settings) -> `Advantages`, with the settings that define it. To add
one, write such a function and put it into `ALGORITHMS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax.numpy as jnp

from gigpo_jax.errors import InputError
from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, gigpo_advantages
from gigpo_jax.rl.losses import Ratio
from gigpo_jax.rl.types import StepColumns

# The switches on which published implementations differ; docs/algorithm.md explains them.
PRESETS: dict[str, dict[str, str | int]] = {
    "paper": {"episode_stats": "trajectory", "penalty_in": "reward", "singleton_episode": "zero", "ddof": 1},
    "verl_agent": {"episode_stats": "step", "penalty_in": "row", "singleton_episode": "raw", "ddof": 1},
}


def gigpo(columns: StepColumns, **settings: Any) -> Advantages:
    """`gigpo_advantages` of a struct of columns; the settings are its keywords."""
    c = columns
    return gigpo_advantages(c.reward, c.penalty, c.trajectory, c.step, c.group, c.anchor, c.mask, **settings)


def rloo(columns: StepColumns, **settings: Any) -> Advantages:
    """Compares an episode with the mean of the *other* episodes of its task (RLOO, arXiv 2402.14740, eq. 9).

    R_i - mean of R_j over j != i is n / (n - 1) times R_i - mean R over all n. The step part is zero; `normalize`,
    `episode_stats` and `step_weight` have no effect.
    """
    settings |= {"normalize": "mean", "episode_stats": "trajectory", "step_weight": 0.0}
    plain = gigpo(columns, **settings)
    rows = columns.mask.shape[0]
    if rows == 0:
        return plain
    group = segments.segments_of(columns.mask, columns.group)
    trajectory = segments.segments_of(columns.mask, columns.group, columns.trajectory)
    size = segments.segment_count(group, trajectory == jnp.arange(rows, dtype=jnp.int32)).astype(jnp.float32)
    # A group of one keeps the advantage of `singleton_episode`.
    episode = plain.episode * jnp.where(size > 1.0, size / jnp.maximum(size - 1.0, 1.0), 1.0)
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))


def reinforce_pp(columns: StepColumns, **settings: Any) -> Advantages:
    """Compares the return of a step with all steps of the batch (REINFORCE++, arXiv 2501.03262, eq. 9).

    The episode part is zero; `step_weight` has no effect.
    """
    trajectory = columns.trajectory
    if columns.mask.shape[0]:
        trajectory = segments.segments_of(columns.mask, columns.group, trajectory)
    # One group with one anchor state: its step advantage is the whitened return.
    one = replace(
        columns,
        trajectory=trajectory,
        group=jnp.zeros_like(columns.group),
        anchor=jnp.zeros_like(columns.anchor),
    )
    step = gigpo(one, **settings).step
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step)


@dataclass(frozen=True)
class Algorithm:
    """How an algorithm differs from GiGPO.

    Attributes:
      advantages: (`StepColumns`, keyword settings of preset and config) -> `Advantages`.
      fixed: settings under `rl` without which it would be another algorithm; other values are refused.
      defaults: its own defaults of settings under `rl`; values that the user gives win.
      ratio: the probability ratio of its loss, see `losses.LossSettings`.
    """

    advantages: Callable[..., Advantages] = gigpo
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ratio: Ratio = "token"


NO_STEP = {"step_weight": 0.0}

ALGORITHMS: dict[str, Algorithm] = {
    "gigpo": Algorithm(),
    "grpo": Algorithm(fixed=NO_STEP),
    # Dr. GRPO (arXiv 2503.20783): no division by the standard deviation, nor by the length of responses.
    "dr_grpo": Algorithm(fixed=NO_STEP | {"normalize": "mean"}, defaults={"loss_mean": "constant"}),
    # DAPO (arXiv 2503.14476): a higher upper clip, no KL term.
    "dapo": Algorithm(fixed=NO_STEP, defaults={"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0}),
    # GSPO (arXiv 2507.18071, eq. 5): the ratio of whole responses is closer to 1, and so are its clips. They are as
    # narrow as the rounding differences between engine and learner, so the learner recomputes old log-probabilities.
    "gspo": Algorithm(
        fixed=NO_STEP,
        defaults={"clip_low": 3e-4, "clip_high": 4e-4, "loss_mean": "responses", "old_logprobs": "recompute"},
        ratio="sequence",
    ),
    "rloo": Algorithm(advantages=rloo, fixed=NO_STEP | {"normalize": "mean"}),
    "reinforce_pp": Algorithm(advantages=reinforce_pp, fixed={"step_weight": 1.0}),
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
    name: str, preset: str, *, gamma: float, step_weight: float, normalize: str, **settings: Any
) -> Callable[[StepColumns], Advantages]:
    """Builds an algorithm's advantage function.

    Args:
      name: a key of `ALGORITHMS`.
      preset: a key of `PRESETS`.
      gamma: discount of the step returns.
      step_weight: weight of the step advantage, unless the algorithm fixes it.
      normalize: "mean_std" or "mean", likewise.
      **settings: further keywords of the algorithm's function; they win over the preset.

    Raises:
      InputError: there is no algorithm or preset of that name.
    """
    chosen = algorithm(name)
    if preset not in PRESETS:
        raise InputError(f"rl.preset={preset!r}: no such preset; choose one of {', '.join(PRESETS)}")
    settings = {"gamma": gamma, "step_weight": step_weight, "normalize": normalize, **settings}
    return partial(chosen.advantages, **{**PRESETS[preset], **settings, **chosen.fixed})
