"""GiGPO advantages (arXiv 2505.10978): episodes compared within a task, steps within an anchor state.

With a task's trajectories i and their steps t:

    R_i    = sum_t r(i,t)                       G(i,t) = sum_{k>=t} gamma^(k-t) r(i,k)           (eq. 5)
    A_E(i) = (R_i - mean R) / F                 over the task group                              (eq. 3)
    A_S(i,t) = (G(i,t) - mean G) / F            over the group's steps with the same anchor      (eq. 6, 7)
    A(i,t) = A_E(i) + step_weight * A_S(i,t)                                                     (eq. 8)

F is the standard deviation plus eps, or 1. `step_weight=0` is GRPO. Published code differs from the paper in what the
means run over and where the penalty of an invalid action goes; each difference is a switch, and
`gigpo_jax.rl.algorithms.PRESETS` names the usual sets.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.errors import InputError
from gigpo_jax.rl import segments

Normalize = Literal["mean_std", "mean"]
EpisodeStats = Literal["trajectory", "step"]
PenaltyIn = Literal["reward", "row"]
SingletonEpisode = Literal["zero", "raw"]

CHOICES: dict[str, tuple[str | int, ...]] = {
    "normalize": ("mean_std", "mean"),
    "episode_stats": ("trajectory", "step"),
    "penalty_in": ("reward", "row"),
    "singleton_episode": ("zero", "raw"),
    "ddof": (0, 1),
}


@partial(jax.tree_util.register_dataclass, data_fields=["total", "episode", "step"], meta_fields=[])
@dataclass(frozen=True)
class Advantages:
    """Advantages of N environment steps, each zero where masked.

    Attributes:
      total: [N] f32, `episode + step_weight * step`; every token of the step's response gets it.
      episode: [N] f32, the episode compared with the episodes of its task.
      step: [N] f32, the step compared with the steps of its task from the same anchor state.
    """

    total: Array
    episode: Array
    step: Array


def check_columns(**columns: Array) -> int:
    """Checks rank, length and dtype of step columns by their names.

    Args:
      **columns: arrays named as the arguments of `gigpo_advantages`.

    Returns:
      N, the number of rows.

    Raises:
      ValueError: a shape is wrong.
      TypeError: a dtype is wrong.
    """
    rows = {name: column.shape[0] if column.ndim else -1 for name, column in columns.items()}
    for name, column in columns.items():
        shape = (rows[name], 2) if name == "anchor" else (rows[name],)
        if column.ndim == 0 or column.shape != shape:
            wanted = "[N, 2]" if name == "anchor" else "[N]"
            raise ValueError(f"{name} must have shape {wanted}, got {column.shape}")
        kind = {"anchor": jnp.uint32, "mask": jnp.bool_, "reward": jnp.floating, "penalty": jnp.floating}.get(
            name, jnp.integer
        )
        if not jnp.issubdtype(column.dtype, kind):
            raise TypeError(f"{name} must be of type {kind.__name__}, got {column.dtype}")
    if len(set(rows.values())) > 1:
        raise ValueError(f"columns differ in length: {rows}")
    return next(iter(rows.values()))


def check_choices(**settings: str | int) -> None:
    """Checks settings against `CHOICES`.

    Raises:
      InputError: a value is not one of the choices.
    """
    for key, value in settings.items():
        if value not in CHOICES[key]:
            raise InputError(f"{key}={value!r}: must be one of {', '.join(map(repr, CHOICES[key]))}")


@partial(jax.jit, static_argnames=("normalize", "episode_stats", "penalty_in", "singleton_episode", "ddof"))
def gigpo_advantages(
    reward: Array,
    penalty: Array,
    trajectory: Array,
    step: Array,
    group: Array,
    anchor: Array,
    mask: Array,
    *,
    gamma: ArrayLike,
    step_weight: ArrayLike,
    normalize: Normalize,
    episode_stats: EpisodeStats,
    penalty_in: PenaltyIn,
    singleton_episode: SingletonEpisode,
    ddof: int = 1,
    eps: ArrayLike = 1e-6,
) -> Advantages:
    """Computes GiGPO advantages of environment steps in any row order (arXiv 2505.10978, eq. 3 to 8).

    Masked steps neither give nor get anything; their values, NaN included, are not looked at. Where steps of a
    trajectory are missing (0, 2, 5), returns discount by the difference of the step indices, not by rank. A pair of
    (trajectory, step) occurs once. Trajectory numbers need be distinct within their group only.

    With `penalty_in="row"` a row's episode score is R_i - p(i,t). Together with `episode_stats="trajectory"` that
    score is compared with mean and standard deviation of the R_i; where these are all equal, `"mean_std"` gives 0.

    Args:
      reward: [N] f32, environment reward of the step.
      penalty: [N] f32, >= 0, for an invalid action, in units of the reward.
      trajectory: [N] i32, which trajectory the step is of.
      step: [N] i32, its index in that trajectory, from 0.
      group: [N] i32, the task group of that trajectory.
      anchor: [N, 2] u32, hash of the anchor state; equal hashes in different groups are different states.
      mask: [N] bool, False for padding and for steps of aborted trajectories.
      gamma: discount of the step returns.
      step_weight: omega, the weight of the step advantage; 0 gives GRPO.
      normalize: "mean_std" divides by the standard deviation plus `eps`, "mean" does not divide.
      episode_stats: mean and F of episodes run over "trajectory", one value each, or over "step", one value a row.
      penalty_in: "reward" takes the penalty from the reward of its step, so that it reaches R_i and earlier returns;
        "row" takes it from that row's episode score and step return alone.
      singleton_episode: a group with one value to compare gets "zero" or its "raw" score as episode advantage.
      ddof: 1 for the unbiased standard deviation, 0 for the biased one.
      eps: added to the standard deviation.

    Returns:
      Advantages of shape [N].

    Raises:
      InputError: a setting is not one of its choices.
      ValueError: a shape is wrong.
      TypeError: a dtype is wrong.
    """
    check_choices(
        normalize=normalize,
        episode_stats=episode_stats,
        penalty_in=penalty_in,
        singleton_episode=singleton_episode,
        ddof=ddof,
    )
    rows = check_columns(
        reward=reward, penalty=penalty, trajectory=trajectory, step=step, group=group, anchor=anchor, mask=mask
    )
    if rows == 0:
        empty = jnp.zeros(0, jnp.float32)
        return Advantages(empty, empty, empty)
    steps = _in_order(reward, penalty, trajectory, step, group, anchor, mask)
    reward = steps.reward - steps.penalty if penalty_in == "reward" else steps.reward
    taken = steps.penalty if penalty_in == "row" else jnp.zeros_like(reward)
    returns, totals = segments.suffix_sums(reward, steps.step, steps.trajectory, gamma)
    episode_return = totals[steps.trajectory]
    score = episode_return - taken
    if episode_stats == "trajectory":
        basis, member = episode_return, steps.trajectory == jnp.arange(rows)
    else:
        basis, member = score, steps.valid
    compare = partial(segments.compare, normalize=normalize, ddof=ddof, eps=eps)
    episode = compare(score, basis, steps.group, member)
    alone = segments.segment_count(steps.group, member) == 1
    episode = jnp.where(alone, score if singleton_episode == "raw" else 0.0, episode)
    alone = segments.segment_count(steps.anchor, steps.valid) == 1
    stepwise = compare(returns - taken, returns - taken, steps.anchor, steps.valid)
    stepwise = jnp.where(alone, 0.0, stepwise)
    columns = jnp.stack([episode + jnp.float32(step_weight) * stepwise, episode, stepwise], 1)
    columns = jnp.where(steps.valid[:, None], columns, 0.0)
    columns = jnp.zeros_like(columns).at[steps.order].set(columns, unique_indices=True)
    return Advantages(total=columns[:, 0], episode=columns[:, 1], step=columns[:, 2])


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["order", "valid", "reward", "penalty", "step", "group", "trajectory", "anchor"],
    meta_fields=[],
)
@dataclass(frozen=True)
class _Steps:
    """Step rows ordered by group, trajectory and step, masked ones last.

    Attributes:
      order: [N] i32, where the row stood.
      valid: [N] bool, False where masked.
      reward: [N] f32, 0 where masked.
      penalty: [N] f32, 0 where masked.
      step: [N] i32.
      group: [N] i32, segments; so are the next two.
      trajectory: [N] i32.
      anchor: [N] i32.
    """

    order: Array
    valid: Array
    reward: Array
    penalty: Array
    step: Array
    group: Array
    trajectory: Array
    anchor: Array


def _in_order(
    reward: Array, penalty: Array, trajectory: Array, step: Array, group: Array, anchor: Array, mask: Array
) -> _Steps:
    order = segments.lexicographic_order(mask, group, trajectory, step)
    valid = mask[order]
    group, trajectory, step = (key[order].astype(jnp.int32) for key in (group, trajectory, step))
    # `valid` is a key too: masked rows may hold the numbers of the last trajectory.
    new_group = segments.differs_from_previous(group, valid)
    new_trajectory = segments.differs_from_previous(group, trajectory, valid)
    group_id = segments.runs(new_group, valid)
    return _Steps(
        order=order,
        valid=valid,
        reward=jnp.where(valid, reward[order], 0.0).astype(jnp.float32),
        penalty=jnp.where(valid, penalty[order], 0.0).astype(jnp.float32),
        step=step,
        group=group_id,
        trajectory=segments.runs(new_trajectory, valid),
        anchor=segments.segments_of(valid, group_id, anchor[order, 0], anchor[order, 1]),
    )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "anchor_group_size",
        "anchor_group_size_mean",
        "anchor_group_size_histogram",
        "singleton_share",
        "zero_advantage_share",
        "episode_norm",
        "step_norm",
    ],
    meta_fields=[],
)
@dataclass(frozen=True)
class Credit:
    """How much the two advantages had to say; shares are of the unmasked steps, 0 if there are none.

    Attributes:
      anchor_group_size: [N] i32, steps that share the step's anchor state, itself included; 0 where masked.
      anchor_group_size_mean: scalar f32, over anchor groups.
      anchor_group_size_histogram: [bins] i32, entry b counts the anchor groups of size b + 1, the last one those of at
        least `bins`.
      singleton_share: scalar f32, share of steps that are alone in their anchor group.
      zero_advantage_share: scalar f32, share of steps whose total advantage is 0: they teach nothing.
      episode_norm: scalar f32, root mean square of the episode advantage over steps.
      step_norm: scalar f32, root mean square of the step advantage over steps.
    """

    anchor_group_size: Array
    anchor_group_size_mean: Array
    anchor_group_size_histogram: Array
    singleton_share: Array
    zero_advantage_share: Array
    episode_norm: Array
    step_norm: Array


@partial(jax.jit, static_argnames=("bins",))
def credit(advantages: Advantages, group: Array, anchor: Array, mask: Array, *, bins: int = 32) -> Credit:
    """Measures anchor groups and advantages of a batch.

    Args:
      advantages: of the same rows.
      group: [N] i32, the task group.
      anchor: [N, 2] u32, hash of the anchor state.
      mask: [N] bool.
      bins: length of the histogram.

    Returns:
      Credit.

    Raises:
      ValueError: a shape is wrong.
      TypeError: a dtype is wrong.
    """
    rows = check_columns(group=group, anchor=anchor, mask=mask)
    steps = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
    if rows == 0:
        number, one_a_group = jnp.zeros(0, jnp.int32), mask
    else:
        number = segments.segments_of(mask, group.astype(jnp.int32), anchor[:, 0], anchor[:, 1])
        index = jnp.arange(rows, dtype=jnp.int32)
        one_a_group = number == index
    size = jnp.where(mask, segments.segment_count(number, mask), 0) if rows else number

    def share(condition: Array) -> Array:
        return jnp.sum(mask & condition) / steps

    return Credit(
        anchor_group_size=size,
        anchor_group_size_mean=jnp.sum(mask) / jnp.maximum(jnp.sum(one_a_group), 1).astype(jnp.float32),
        anchor_group_size_histogram=jax.ops.segment_sum(
            one_a_group.astype(jnp.int32), jnp.clip(size, 1, bins) - 1, bins
        ),
        singleton_share=share(size == 1),
        zero_advantage_share=share(advantages.total == 0.0),
        episode_norm=jnp.sqrt(jnp.sum(jnp.where(mask, advantages.episode, 0.0) ** 2) / steps),
        step_norm=jnp.sqrt(jnp.sum(jnp.where(mask, advantages.step, 0.0) ** 2) / steps),
    )
