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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.errors import InputError
from gigpo_jax.rl import segments
from gigpo_jax.rl.types import StepColumns

Normalize = Literal["mean_std", "mean"]  # divide by the standard deviation plus eps, or not at all
# Mean and F of episodes run over trajectories, one value each, or over steps, one value a row.
EpisodeStats = Literal["trajectory", "step"]
# "reward": the penalty is taken from the reward of its step, so it reaches R_i and earlier returns. "row": from the
# row's episode score and step return alone; with trajectory statistics the score is compared with the R_i.
PenaltyIn = Literal["reward", "row"]
SingletonEpisode = Literal["zero", "raw"]  # the episode advantage of a group with one value: 0 or its score

CHOICES: dict[str, tuple[str | int, ...]] = {
    "normalize": get_args(Normalize),
    "episode_stats": get_args(EpisodeStats),
    "penalty_in": get_args(PenaltyIn),
    "singleton_episode": get_args(SingletonEpisode),
    "ddof": (0, 1),
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Advantages:
    """Advantages of N environment steps, each zero where masked.

    Attributes:
      total: [N] f32, `episode + step_weight * step`; every token of the step's response gets it.
      episode: [N] f32, the episode compared with the episodes of its task.
      step: [N] f32, the step compared with the steps of its task from the same anchor state.
      clip_scale: [N] f32, factor of the loss's clips for the step's response; None: 1.
      tokens: [N, R] f32, in place of the total for each response token, whose mean the total is then; or None.
      target: [N] or [N, R] f32, what a critic learns before each response or each token of it; or None.
    """

    total: Array
    episode: Array
    step: Array
    clip_scale: Array | None = None
    tokens: Array | None = None
    target: Array | None = None


def check_columns(**columns: Array) -> int:
    """Checks rank, length and dtype of step columns, named as the fields of `StepColumns`.

    Returns:
      N, the number of rows.

    Raises:
      ValueError: a shape is wrong.
      TypeError: a dtype is wrong.
    """
    hashes = dict.fromkeys(("anchor", "action", "next_anchor"), jnp.uint32)
    numbers = ("reward", "penalty", "entropy", "logprob", "value", "step_reward", "answer_logprob")
    kinds = {"mask": jnp.bool_, **hashes, **dict.fromkeys(numbers, jnp.floating)}
    rows = {name: column.shape[0] if column.ndim else -1 for name, column in columns.items()}
    for name, column in columns.items():
        shape = (rows[name], 2) if name in hashes else (rows[name],)
        if column.ndim == 0 or column.shape != shape:
            wanted = "[N, 2]" if name in hashes else "[N]"
            raise ValueError(f"{name} must have shape {wanted}, got {column.shape}")
        kind = kinds.get(name, jnp.integer)
        if not jnp.issubdtype(column.dtype, kind):
            raise TypeError(f"{name} must be of type {kind.__name__}, got {column.dtype}")
    if len(set(rows.values())) > 1:
        raise ValueError(f"columns differ in length: {rows}")
    return next(iter(rows.values()))


def given(columns: StepColumns) -> dict[str, Array]:
    """The columns that are not None, by name."""
    return {name: column for name, column in vars(columns).items() if column is not None}


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
    """Computes GiGPO advantages of environment steps (arXiv 2505.10978, eq. 3 to 8).

    The parameters are the fields of `StepColumns` and the settings, one by one, so that it can be used without the
    rest of the package. Each pair of (trajectory, step) occurs once. Masked values, NaN included, have no effect. Where
    steps of a trajectory are missing (0, 2, 5), returns discount by the difference of the step indices.

    Args:
      reward, penalty, trajectory, step, group, anchor, mask: see `StepColumns`.
      gamma: discount of the step returns.
      step_weight: omega, the weight of the step advantage; 0 gives GRPO.
      normalize, episode_stats, penalty_in, singleton_episode, ddof: see the types above.
      eps: added to the standard deviation.

    Raises:
      InputError, ValueError, TypeError: of `check_choices` and `check_columns`.
    """
    check_choices(
        normalize=normalize,
        episode_stats=episode_stats,
        penalty_in=penalty_in,
        singleton_episode=singleton_episode,
        ddof=ddof,
    )
    columns = StepColumns(reward, penalty, trajectory, step, group, anchor, mask)
    if check_columns(**given(columns)) == 0:
        empty = jnp.zeros(0, jnp.float32)
        return Advantages(empty, empty, empty)
    steps = in_order(columns)
    returns = returns_of(steps, gamma=gamma, penalty_in=penalty_in)
    compare = partial(segments.compare, normalize=normalize, ddof=ddof, eps=eps)
    episode = _episode_advantages(steps, returns.episode, returns.penalty, episode_stats, singleton_episode, compare)
    score, penalty = returns.discounted, returns.penalty
    stepwise = compare(score - penalty, score - penalty, steps.anchor, steps.valid)
    stepwise = jnp.where(segments.segment_count(steps.anchor, steps.valid) == 1, 0.0, stepwise)
    ordered = jnp.stack([episode + jnp.float32(step_weight) * stepwise, episode, stepwise], 1)
    restored = steps.restored(ordered)
    return Advantages(total=restored[:, 0], episode=restored[:, 1], step=restored[:, 2])


def _episode_advantages(
    steps: "Steps",
    episode_return: Array,
    taken: Array,
    episode_stats: EpisodeStats,
    singleton_episode: SingletonEpisode,
    compare: Callable[..., Array],
) -> Array:
    """[N] f32, the score of each row's episode compared within its group; `taken` is the penalty of the row."""
    score = episode_return - taken
    if episode_stats == "trajectory":
        basis, member = episode_return, steps.trajectory == jnp.arange(len(score))
    else:
        basis, member = score, steps.valid
    alone = segments.segment_count(steps.group, member) == 1
    return jnp.where(alone, score if singleton_episode == "raw" else 0.0, compare(score, basis, steps.group, member))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Steps:
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

    def previous(self, values: Array, otherwise: ArrayLike) -> Array:
        """[N], what `values` [N] holds of the trajectory's row before; `otherwise` at its first row."""
        first = segments.differs_from_previous(self.trajectory) | ~self.valid
        return jnp.where(first, otherwise, jnp.roll(values, 1))

    def following(self, values: Array, otherwise: ArrayLike) -> Array:
        """[N], what `values` [N] holds of the trajectory's next row; `otherwise` at its last row."""
        last = jnp.roll(segments.differs_from_previous(self.trajectory), -1) | ~self.valid
        return jnp.where(last, otherwise, jnp.roll(values, -1))

    def restored(self, values: Array) -> Array:
        """Values [N] or [N, k] of ordered rows -> of rows as they stood, 0 where masked."""
        values = jnp.where(self.valid[:, None] if values.ndim == 2 else self.valid, values, 0.0)
        return jnp.zeros_like(values).at[self.order].set(values, unique_indices=True)


class Returns(NamedTuple):
    """Of ordered rows.

    Attributes:
      discounted: [N] f32, sum of the discounted rewards from the step on (eq. 5).
      episode: [N] f32, undiscounted sum over the step's trajectory.
      penalty: [N] f32, what is to be taken from the row's scores; 0 if penalties are part of the rewards.
    """

    discounted: Array
    episode: Array
    penalty: Array


def returns_of(steps: Steps, *, gamma: ArrayLike, penalty_in: PenaltyIn) -> Returns:
    """The returns of all steps."""
    reward = steps.reward - steps.penalty if penalty_in == "reward" else steps.reward
    penalty = steps.penalty if penalty_in == "row" else jnp.zeros_like(reward)
    discounted, totals = segments.suffix_sums(reward, steps.step, steps.trajectory, gamma)
    return Returns(discounted, totals[steps.trajectory], penalty)


def in_order(columns: StepColumns) -> Steps:
    """Orders N >= 1 rows."""
    mask = columns.mask
    order = segments.lexicographic_order(mask, columns.group, columns.trajectory, columns.step)
    valid = mask[order]
    group, trajectory, step = (
        key[order].astype(jnp.int32) for key in (columns.group, columns.trajectory, columns.step)
    )
    # `valid` is a key too: masked rows may hold the numbers of the last trajectory.
    new_group = segments.differs_from_previous(group, valid)
    new_trajectory = segments.differs_from_previous(group, trajectory, valid)
    group_id = segments.runs(new_group, valid)
    return Steps(
        order=order,
        valid=valid,
        reward=jnp.where(valid, columns.reward[order], 0.0).astype(jnp.float32),
        penalty=jnp.where(valid, columns.penalty[order], 0.0).astype(jnp.float32),
        step=step,
        group=group_id,
        trajectory=segments.runs(new_trajectory, valid),
        anchor=segments.segments_of(valid, group_id, columns.anchor[order, 0], columns.anchor[order, 1]),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Credit:
    """How much the two advantages had to say; shares are of the unmasked steps, 0 if there are none.

    Attributes:
      anchor_group_size: [N] i32, steps that share the step's anchor state, itself included; 0 where masked.
      anchor_group_size_mean: scalar f32, over anchor groups.
      singleton_share: scalar f32, share of steps that are alone in their anchor group.
      zero_advantage_share: scalar f32, share of steps whose total advantage is 0: they teach nothing.
      episode_norm: scalar f32, root mean square of the episode advantage over steps.
      step_norm: scalar f32, root mean square of the step advantage over steps.
    """

    anchor_group_size: Array
    anchor_group_size_mean: Array
    singleton_share: Array
    zero_advantage_share: Array
    episode_norm: Array
    step_norm: Array


@jax.jit
def credit(advantages: Advantages, columns: StepColumns) -> Credit:
    """Measures anchor groups and advantages of the same rows.

    Raises:
      ValueError: a shape is wrong.
      TypeError: a dtype is wrong.
    """
    group, anchor, mask = columns.group, columns.anchor, columns.mask
    rows = check_columns(group=group, anchor=anchor, mask=mask)
    steps = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
    if rows == 0:
        number, one_a_group = jnp.zeros(0, jnp.int32), mask
    else:
        number = segments.segments_of(mask, group.astype(jnp.int32), anchor[:, 0], anchor[:, 1])
        one_a_group = number == jnp.arange(rows, dtype=jnp.int32)
    size = jnp.where(mask, segments.segment_count(number, mask), 0) if rows else number

    def share(condition: Array) -> Array:
        return jnp.sum(mask & condition) / steps

    return Credit(
        anchor_group_size=size,
        anchor_group_size_mean=jnp.sum(mask) / jnp.maximum(jnp.sum(one_a_group), 1).astype(jnp.float32),
        singleton_share=share(size == 1),
        zero_advantage_share=share(advantages.total == 0.0),
        episode_norm=jnp.sqrt(jnp.sum(jnp.where(mask, advantages.episode, 0.0) ** 2) / steps),
        step_norm=jnp.sqrt(jnp.sum(jnp.where(mask, advantages.step, 0.0) ** 2) / steps),
    )
