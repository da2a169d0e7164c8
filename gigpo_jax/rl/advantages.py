"""GiGPO advantages (arXiv 2505.10978): comparison of episodes of a task and steps of a state.

With a task's trajectories i and their steps t:

    G(i,t) = sum_{k>=t} gamma^(k-t) r(i,k),  R_i = sum_t r(i,t)                     (eq. 5)
    A_E(i) = (R_i - mean R) / F            over the task group                       (eq. 3)
    A_S(i,t) = (G(i,t) - mean G) / F       over its steps with the same anchor       (eq. 6, 7)
    A(i,t) = A_E(i) + step_weight * A_S(i,t)                                         (eq. 8)

F is the standard deviation plus eps, or 1. `step_weight=0` is GRPO. Published code differs from the
paper in what the means run over and where the penalty of an invalid action goes; each difference is
a switch, and `gigpo_jax.rl.algorithms.PRESETS` names the usual sets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.core.errors import InputError
from gigpo_jax.rl import segments
from gigpo_jax.rl.types import StepColumns

Normalize = Literal["mean_std", "mean"]  # divide by the standard deviation plus eps, or not at all
# Mean and F of episodes run over trajectories, one value each, or over steps, one value a row.
EpisodeStats = Literal["trajectory", "step"]
# "reward": the penalty is taken from the reward of its step, so it reaches R_i and earlier returns.
# "row": from the row's episode score and step return alone; with trajectory statistics the score is
# compared with the R_i.
PenaltyIn = Literal["reward", "row"]
# Episode advantage of a group with one value: 0 or its score.
SingletonEpisode = Literal["zero", "raw"]

CHOICES: dict[str, tuple[str | int, ...]] = {
    "normalize": get_args(Normalize),
    "episode_stats": get_args(EpisodeStats),
    "penalty_in": get_args(PenaltyIn),
    "singleton_episode": get_args(SingletonEpisode),
    "ddof": (0, 1),
}
# A hash of 64 bits is two u32 lanes: jax has no 64-bit integers unless jax_enable_x64 is set.
HASHES = ("anchor", "action", "next_anchor", "past")
_NUMBERS = ("trajectory", "step", "group", "tokens")
_FLAGS = ("mask", "won", "truncated", "forked", "summary")
# All other columns are floats.
COLUMN_TYPES = {
    **dict.fromkeys(HASHES, jnp.uint32),
    **dict.fromkeys(_NUMBERS, jnp.integer),
    **dict.fromkeys(_FLAGS, jnp.bool_),
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Advantages:
    """Advantages of N environment steps, each zero where masked.

    Attributes:
      total: [N] f32, `episode + step_weight * step`; every token of the step's response gets it.
      episode: [N] f32, comparison of the episode with the episodes of its task.
      step: [N] f32, comparison of the step with the steps of its task from the same anchor state.
      clip_scale: [N] f32, factor of the loss's clips for the step's response; None: 1.
      tokens: [N, R] f32, advantages of response tokens in place of the total, which is then their
        mean; or None.
      target: [N] or [N, R] f32, a critic's target before each response, or before each token of it;
        [N, V] of a critic with V values a response; or None.
      learned: [N] bool, steps that are in the loss; None: all are.
    """

    total: Array
    episode: Array
    step: Array
    clip_scale: Array | None = None
    tokens: Array | None = None
    target: Array | None = None
    learned: Array | None = None


def check_columns(**columns: Array) -> int:
    """Checks step columns, keywords named as in `StepColumns`; returns N, the number of rows.

    Raises:
      ValueError: A shape is wrong.
      TypeError: A dtype is wrong.
    """
    lengths = {}
    for name, column in columns.items():
        is_hash = name in HASHES
        lengths[name] = column.shape[0] if column.ndim else -1
        shape = (lengths[name], 2) if is_hash else (lengths[name],)
        if column.ndim == 0 or column.shape != shape:
            expected = "[N, 2]" if is_hash else "[N]"
            raise ValueError(f"{name} must have shape {expected}, got {column.shape}")
        kind = COLUMN_TYPES.get(name, jnp.floating)
        if not jnp.issubdtype(column.dtype, kind):
            raise TypeError(f"{name} must be of type {kind.__name__}, got {column.dtype}")
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns differ in length: {lengths}")
    return next(iter(lengths.values()))


def present_columns(columns: StepColumns) -> dict[str, Array]:
    """The columns that are not None, by name."""
    named = {**vars(columns), **columns.extra}
    del named["extra"]
    return {name: column for name, column in named.items() if column is not None}


def check_choices(**settings: str | int) -> None:
    """Checks settings against `CHOICES`.

    Raises:
      InputError: A value is not one of the choices.
    """
    for key, value in settings.items():
        if value not in CHOICES[key]:
            choices = ", ".join(map(repr, CHOICES[key]))
            raise InputError(f"must be one of {choices}", key=key, value=repr(value))


@partial(
    jax.jit,
    # These choose between programs. gamma and the weights are traced: other values
    # compile nothing anew.
    static_argnames=("normalize", "episode_stats", "penalty_in", "singleton_episode", "ddof"),
)
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
    forked: Array | None = None,
) -> Advantages:
    """Computes GiGPO advantages of environment steps.

    Source: arXiv 2505.10978, eq. 3 to 8. It takes the fields of `StepColumns`, which describes
    them, and the settings one by one, so that it can be used without the rest of the package. Rows
    of one trajectory and step follow each other without a discount: a text, then its step.
    Masked values, NaN included, have no effect. Where steps of a trajectory are missing (0, 2, 5),
    returns discount by the difference of the step indices.

    Args:
      reward, penalty: [N] f32.
      trajectory, step, group: [N] i32.
      anchor: [N, 2] u32, hash of the anchor state.
      mask: [N] bool, False for padding.
      gamma: Discount factor of step returns.
      step_weight: omega, weight of the step advantage; 0 gives GRPO.
      normalize, episode_stats, penalty_in, singleton_episode: Values of the types of these names.
      ddof: Number subtracted from the count in a variance, 0 or 1.
      eps: Number added to the standard deviation.
      forked: [N] bool, steps of trajectories that begin in a state of an earlier one; None: there
        are none.

    Raises:
      InputError: A setting is not one of its choices.
      ValueError: A shape is wrong.
      TypeError: A dtype is wrong.
    """
    # Static arguments: this runs when the function is traced, and costs the compiled
    # program nothing.
    check_choices(
        normalize=normalize,
        episode_stats=episode_stats,
        penalty_in=penalty_in,
        singleton_episode=singleton_episode,
        ddof=ddof,
    )
    columns = StepColumns(reward, penalty, trajectory, step, group, anchor, mask, forked=forked)
    # Without rows there is no first row, which `segments` relies on.
    if check_columns(**present_columns(columns)) == 0:
        empty = jnp.zeros(0, jnp.float32)
        return Advantages(empty, empty, empty)
    steps = order_steps(columns)
    returns = compute_returns(steps, gamma=gamma, penalty_in=penalty_in)
    compare = partial(segments.compare_values, normalize=normalize, ddof=ddof, eps=eps)
    episode = _episode_advantages(
        steps, returns.episode, returns.penalty, episode_stats, singleton_episode, compare
    )
    if forked is not None:
        from gigpo_jax.rl.fork_advantages import compare_forks

        reward = steps.reward - steps.penalty
        forks = compare_forks(
            reward, steps.step, steps.trajectory, steps.anchor, steps.valid, compare
        )
        episode = jnp.where(steps.whole, episode, forks)
    # After discounting: with "row" the penalty reaches no earlier step, as in verl-agent.
    score = returns.discounted - returns.penalty
    stepwise = compare(score, score, steps.anchor, steps.valid)
    # A step alone in its state has nothing to be compared with, with both presets.
    stepwise = jnp.where(segments.count_members(steps.anchor, steps.valid) == 1, 0.0, stepwise)
    ordered = jnp.stack([episode + jnp.float32(step_weight) * stepwise, episode, stepwise], 1)
    # One scatter for all three.
    rows = steps.restore(ordered)
    return Advantages(total=rows[:, 0], episode=rows[:, 1], step=rows[:, 2])


def _episode_advantages(
    steps: "Steps",
    episode_return: Array,
    penalty: Array,
    episode_stats: EpisodeStats,
    singleton_episode: SingletonEpisode,
    compare: Callable[..., Array],
) -> Array:
    """Compares the score of each row's episode, its return less the row's penalty, in its group."""
    score = episode_return - penalty
    # Rows of one trajectory can have different scores (penalty "row"). So values and their
    # basis are two arguments: each row is compared with one return a trajectory, or with the
    # scores of all rows.
    if episode_stats == "trajectory":
        basis = episode_return
        member = steps.whole & steps.first_rows
    else:
        basis = score
        member = steps.whole
    # verl-agent subtracts no mean from a group of one, which keeps its score ("raw").
    # `compare` gives 0.
    is_alone = segments.count_members(steps.group, member) == 1
    advantage = compare(score, basis, steps.group, member)
    singleton = score if singleton_episode == "raw" else 0.0
    return jnp.where(is_alone, singleton, advantage)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Steps:
    """Step rows by group, trajectory and step, masked ones last.

    Attributes:
      order: [N] i32, index of the row in the columns.
      valid: [N] bool, False where masked.
      whole: [N] bool, valid rows of trajectories that begin at the start of the task.
      reward: [N] f32, 0 where masked.
      penalty: [N] f32, 0 where masked.
      step: [N] i32, index of the step in its trajectory.
      group: [N] i32, segment of the task group.
      trajectory: [N] i32, segment of the trajectory.
      anchor: [N] i32, segment of the anchor state in its group.
    """

    order: Array
    valid: Array
    whole: Array
    reward: Array
    penalty: Array
    step: Array
    group: Array
    trajectory: Array
    anchor: Array

    @property
    def first_rows(self) -> Array:
        """Mask of the first row of each trajectory, [N] bool."""
        return self.trajectory == jnp.arange(len(self.valid), dtype=jnp.int32)

    def restore(self, values: Array) -> Array:
        """Brings values, [N] or [N, k], into the order of the columns, with 0 where masked."""
        valid = self.valid[:, None] if values.ndim == 2 else self.valid
        values = jnp.where(valid, values, 0.0)
        # `order` is a permutation: no two rows write to one place.
        return jnp.zeros_like(values).at[self.order].set(values, unique_indices=True)


class Returns(NamedTuple):
    """Returns of ordered rows.

    Attributes:
      discounted: [N] f32, sum of the discounted rewards from the step on (eq. 5).
      episode: [N] f32, undiscounted sum over the step's trajectory.
      penalty: [N] f32, penalty to subtract from the row's scores; 0 if the rewards contain it.
    """

    discounted: Array
    episode: Array
    penalty: Array


def compute_returns(steps: Steps, *, gamma: ArrayLike, penalty_in: PenaltyIn) -> Returns:
    """Computes the returns of all steps."""
    # Either the rewards contain the penalty or the scores subtract it; never both.
    reward = steps.reward - steps.penalty if penalty_in == "reward" else steps.reward
    penalty = steps.penalty if penalty_in == "row" else jnp.zeros_like(reward)
    discounted, totals = segments.suffix_sums(reward, steps.step, steps.trajectory, gamma)
    # The undiscounted suffix sum of a trajectory's first row is the whole return.
    return Returns(discounted, totals[steps.trajectory], penalty)


def order_steps(columns: StepColumns) -> Steps:
    """Orders N >= 1 rows."""
    mask = columns.mask
    order = segments.lexicographic_order(mask, columns.group, columns.trajectory, columns.step)
    valid = mask[order]
    group = columns.group[order].astype(jnp.int32)
    trajectory = columns.trajectory[order].astype(jnp.int32)
    step = columns.step[order].astype(jnp.int32)
    # `valid` is a key too: masked rows may hold the numbers of the last trajectory.
    new_group = segments.differs_from_previous(group, valid)
    new_trajectory = segments.differs_from_previous(group, trajectory, valid)
    group_id = segments.number_runs(new_group, valid)
    return Steps(
        order=order,
        valid=valid,
        whole=valid if columns.forked is None else valid & ~columns.forked[order],
        # `where`, not a product with the mask: a masked value may be NaN, and 0 times NaN is NaN.
        reward=jnp.where(valid, columns.reward[order], 0.0).astype(jnp.float32),
        penalty=jnp.where(valid, columns.penalty[order], 0.0).astype(jnp.float32),
        step=step,
        group=group_id,
        trajectory=segments.number_runs(new_trajectory, valid),
        # The group is a key: equal texts of two tasks are two states.
        anchor=segments.number_segments(
            valid, group_id, columns.anchor[order, 0], columns.anchor[order, 1]
        ),
    )


@jax.jit
def measure_credit(advantages: Advantages, columns: StepColumns) -> dict[str, Array]:
    """Measures anchor groups and advantages of the same rows; all numbers are 0 without steps.

    Returns:
      [] f32 over the unmasked steps: `anchor_group_size_mean`, the mean over anchor groups;
      `singleton_share`, the steps that are alone in their anchor group; `zero_advantage_share`, the
      steps that teach nothing, as their total advantage is 0; `episode_norm` and `step_norm`, the
      root mean squares of these advantages.
    """
    group = columns.group
    anchor = columns.anchor
    mask = columns.mask
    rows = check_columns(group=group, anchor=anchor, mask=mask)
    steps = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
    if rows == 0:
        size = jnp.zeros(0, jnp.int32)
        is_first_row = mask
    else:
        number = segments.number_segments(mask, group.astype(jnp.int32), anchor[:, 0], anchor[:, 1])
        size = jnp.where(mask, segments.count_members(number, mask), 0)
        # An anchor group has one first row: as many first rows, as many groups.
        is_first_row = number == jnp.arange(rows, dtype=jnp.int32)
    anchor_groups = jnp.maximum(jnp.sum(is_first_row), 1).astype(jnp.float32)

    def share(condition: Array) -> Array:
        return jnp.sum(mask & condition) / steps

    def norm(values: Array) -> Array:
        return jnp.sqrt(jnp.sum(jnp.where(mask, values, 0.0) ** 2) / steps)

    return {
        "anchor_group_size_mean": jnp.sum(mask) / anchor_groups,
        "singleton_share": share(size == 1),
        "zero_advantage_share": share(advantages.total == 0.0),
        "episode_norm": norm(advantages.episode),
        "step_norm": norm(advantages.step),
    }
