"""Values of neighbouring rows: of the step before or after, of earlier equal ones, of a group."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Steps, compute_returns


def previous_values(steps: Steps, values: Array, default: ArrayLike) -> Array:
    """Returns the value of the trajectory's previous row, [N]; `default` at the first row."""
    # The roll brings the last row to row 0. That is the first row of a trajectory,
    # so it is replaced.
    first = segments.differs_from_previous(steps.trajectory) | ~steps.valid
    return jnp.where(first, default, jnp.roll(values, 1))


def following_values(steps: Steps, values: Array, default: ArrayLike) -> Array:
    """Returns the value of the trajectory's next row, [N]; `default` at the last row."""
    # Row n is a last row if row n + 1 starts a trajectory. The roll brings row 0, which
    # always starts one, behind the last row. Masked rows are last and have the number N, so
    # they start one too.
    last = jnp.roll(segments.differs_from_previous(steps.trajectory), -1) | ~steps.valid
    return jnp.where(last, default, jnp.roll(values, -1))


def count_earlier(segment: Array) -> Array:
    """Counts for each row the earlier rows of its segment.

    Args:
      segment: [N] i32.

    Returns:
      [N] i32.
    """
    # Stable: a row's distance to the start of its run is then the number of earlier rows.
    order = jnp.argsort(segment, stable=True)
    index = jnp.arange(segment.shape[0], dtype=jnp.int32)
    start = lax.cummax(jnp.where(segments.differs_from_previous(segment[order]), index, 0))
    return jnp.zeros_like(index).at[order].set(index - start, unique_indices=True)


def average_episodes(steps: Steps) -> Array:
    """Returns the mean return of a group's episodes, without penalties, [N] f32; 0 where masked."""
    rows = len(steps.valid)
    is_first_row = steps.first_rows
    returns = compute_returns(steps, gamma=1.0, penalty_in="row").episode
    # One return a trajectory, whatever its length.
    total = jax.ops.segment_sum(jnp.where(is_first_row, returns, 0.0), steps.group, rows)
    count = segments.count_members(steps.group, is_first_row)
    return total[steps.group] / jnp.maximum(count, 1)
