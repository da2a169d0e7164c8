"""HiPER (arXiv 2602.16165): advantages of actions, subgoals and switches on two time scales.

A segment is a part of an episode with one subgoal; turn s of length n begins the next one. With r
the reward of a turn less its penalties, and V_low, V_high and V_switch of the critic of plans:

    low     d_t = r_t + gamma V' - V_low(t)          A_t = d_t + gamma lam A_(t+1)
            V' is V_low(t+1) in the segment, V_high(s) at its last turn, where A starts again at 0
    switch  A_t = G_t - V_switch(t),                 G_t the rewards up to turn s, then V_high(s)
    high    d_k = G_k - V_high(k)                    A_k = d_k + 0.95 gamma^n A_s

Tokens of the action have low, tokens of the decision to switch have switch, and tokens of the
subgoal have high at the first turn of a segment; all other tokens have 0. Each of the three is
whitened over its turns. The targets are A + V.

From the authors' code as we know it, with its penalties of turns that keep their subgoal. Our
choices: after the last turn of an episode that used up its steps, `truncation="own"`, low goes on
with its own V_low as in their ALFWorld code, and high and switch with V_high of the segment. The
critic's loss is a mean over all places where a value is read. Tokens with the advantage 0 count in
the mean of the loss.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.gae import whiten
from gigpo_jax.rl.types import StepColumns

# Values of the critic of plans, and the parts of a response whose tokens they teach.
PLAN_VALUES = ("low", "high", "switch")
RESPONSE_PARTS = ("action", "subgoal", "switch")

# The values of the authors' code.
SEGMENT_LAM = 0.95  # lambda of GAE from segment to segment
CHANGE_PENALTY = 0.3  # of a turn that keeps its subgoal and words it otherwise, in units of reward


class _Turn(NamedTuple):
    """What the recursion over turns reads of the next turn, each [] f32 or [] bool.

    Attributes:
      start: Whether it begins a segment.
      low_value: V_low.
      high_value: V_high.
      low: A of low.
      high: A of high; of the next first turn of a segment if it is none.
      segment_return: G.
      discount: gamma to the number of turns up to the next segment.
    """

    start: Array
    low_value: Array
    high_value: Array
    low: Array
    high: Array
    segment_return: Array
    discount: Array


def hiper(
    columns: StepColumns,
    *,
    gamma: float,
    lam: float,
    keep_penalty: float,
    truncation: str,
    **_: Any,
) -> Advantages:
    """Gives each part of a response an advantage; the episode part is zero."""
    order = order_steps(columns)
    valid = order.valid
    value = jnp.where(valid[:, None], columns.extra["plan_value"][order.order], 0.0)
    start = valid & (columns.extra["plan_start"][order.order] | order.first_rows)
    turns = segments.count_members(order.trajectory, valid)
    # `keep_penalty` times the share of turns that keep their subgoal, spread evenly over them.
    kept = keep_penalty / jnp.maximum(turns, 1)
    changed = CHANGE_PENALTY * columns.extra["plan_changed"][order.order]
    penalty = order.penalty + jnp.where(valid & ~start, kept + changed, 0.0)
    advantage = segment_gae(
        order.reward - penalty,
        value,
        start,
        order.trajectory,
        columns.truncated[order.order] & (truncation == "own"),
        gamma=gamma,
        lam=lam,
        segment_lam=SEGMENT_LAM,
    )
    learns = jnp.stack([valid, start, valid], axis=1)
    target = order.restore(jnp.where(learns, advantage + value, 0.0))
    whitened = [whiten(advantage[:, k], learns[:, k], ddof=0) for k in range(len(RESPONSE_PARTS))]
    parts = order.restore(jnp.stack(whitened, axis=1))
    has_part = (columns.extra["token_part"] >= 0) & columns.mask[:, None]
    row_parts = jnp.take_along_axis(parts, jnp.maximum(columns.extra["token_part"], 0), axis=1)
    tokens = jnp.where(has_part, row_parts, 0.0)
    total = jnp.sum(tokens, axis=1) / jnp.maximum(jnp.sum(has_part, axis=1), 1)
    zeros = jnp.zeros_like(total)
    return Advantages(total=total, episode=zeros, step=total, tokens=tokens, target=target)


def segment_gae(
    reward: Array,
    value: Array,
    start: Array,
    trajectory: Array,
    bootstrapped: Array,
    *,
    gamma: ArrayLike,
    lam: ArrayLike,
    segment_lam: ArrayLike,
) -> Array:
    """Estimates low, high and switch of ordered turns, not whitened.

    Args:
      reward: [N] f32, less all penalties.
      value: [N, 3] f32, values of `PLAN_VALUES`.
      start: [N] bool, turns that begin a segment; the first one of a trajectory does.
      trajectory: [N] i32, contiguous segments.
      bootstrapped: [N] bool, last turns behind which the values go on.
      gamma: Discount factor from turn to turn.
      lam: lambda inside a segment.
      segment_lam: lambda from segment to segment.

    Returns:
      [N, 3] f32; high has a meaning where a segment begins.
    """
    rows = len(reward)
    index = jnp.arange(rows)
    first_turn = lax.cummax(jnp.where(start, index, 0))
    # V_high of the segment's first turn.
    segment_value = value[first_turn, 1]
    last = jnp.roll(segments.differs_from_previous(trajectory), -1)

    def step_back(next_turn: _Turn, turn: tuple[Array, ...]) -> tuple[_Turn, Array]:
        reward, (low_value, high_value, switch_value), start, last, goes_on, segment_value = turn
        ends_segment = last | next_turn.start
        behind_low = jnp.where(goes_on, low_value, 0.0)
        behind_high = jnp.where(goes_on, segment_value, 0.0)
        following_high = jnp.where(last, behind_high, next_turn.high_value)
        following_low = jnp.where(ends_segment, following_high, next_turn.low_value)
        following_low = jnp.where(last, behind_low, following_low)
        low = reward + gamma * following_low - low_value
        low += jnp.where(ends_segment, 0.0, gamma * jnp.float32(lam) * next_turn.low)
        following_return = jnp.where(ends_segment, following_high, next_turn.segment_return)
        segment_return = reward + gamma * following_return
        discount = jnp.where(ends_segment, 1.0, next_turn.discount) * gamma
        next_high = jnp.where(last, 0.0, next_turn.high)
        high = segment_return - high_value + discount * segment_lam * next_high
        switch = segment_return - switch_value
        carry = _Turn(
            start,
            low_value,
            high_value,
            low,
            jnp.where(start, high, next_high),
            segment_return,
            discount,
        )
        return carry, jnp.stack([low, high, switch])

    zero = jnp.zeros((), jnp.float32)
    end = _Turn(jnp.zeros((), bool), zero, zero, zero, zero, zero, zero)
    turns = (reward, value, start, last, bootstrapped, segment_value)
    return lax.scan(step_back, end, turns, reverse=True)[1]
