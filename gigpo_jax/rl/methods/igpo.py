"""IGPO (arXiv 2510.14967): turns earn what they tell about the known answer; A2TGPO (arXiv 2605.06200) builds on it.

l_t is the mean log-probability of the answer's tokens behind the prompt of step t (the column `answer_logprob`), so
turn t tells l_(t+1) - l_t. The last turn of an episode gives the answer and earns the outcome, R. z is
(x - mean) / (std + 1e-6) over the task group, gains pooled over all turns, outcomes once an episode; 0 where the
standard deviation is 0.

    IGPO    A_t = sum over k >= t of gamma^(k-t) z_k

    A2TGPO  g_t = exp(l_(t+1)) - exp(l_t)
            u_t = (g_t - mean) / (sqrt(variance + 1e-8) + 1e-6)          over the group's turns with the same index
            D_t = sum over j >= t of gamma^(j-t) u_j / sqrt(n - t)       for the n turns before the last one
            A_t = alpha D_t + z(R);  clips of turn t times 1 + clip_scale (2 sigmoid(u_t) - 1)

Our choices: the papers keep the whole dialogue in one context, here l_t is behind the step's own prompt; the outcome is
the reward of the environment (exact match), not F1; with `penalty_in="row"` the penalty of a step is taken from its
advantage. z has ddof 1; the variance of u has ddof 0, as in the code of A2TGPO, so gains far below 1e-4 count little.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, PenaltyIn, Steps, in_order, returns_of
from gigpo_jax.rl.types import StepColumns


def igpo(columns: StepColumns, *, gamma: float, penalty_in: PenaltyIn, **settings: Any) -> Advantages:
    """The parts are what comes of the outcome and of the gains; `episode_stats` has no effect."""
    del settings
    steps = in_order(columns)
    answer = jnp.where(steps.valid, columns.answer_logprob[steps.order], 0.0)
    turn, outcome, penalty = _turns(steps, penalty_in)
    gain = jnp.where(turn, steps.following(answer, 0.0) - answer, 0.0)
    z = segments.compare(gain, gain, steps.group, turn, normalize="mean_std", ddof=1, eps=1e-6)
    ends = jnp.where(steps.valid & ~turn, outcome, 0.0)
    gains, _ = segments.suffix_sums(jnp.where(turn, z, 0.0), steps.step, steps.trajectory, gamma)
    outcomes, _ = segments.suffix_sums(ends, steps.step, steps.trajectory, gamma)
    parts = (gains + outcomes - penalty, outcomes - penalty, gains)
    return Advantages(*(steps.restored(part) for part in parts))


def a2tgpo(
    columns: StepColumns, *, gamma: float, penalty_in: PenaltyIn, alpha: float, clip_scale: float, **settings: Any
) -> Advantages:
    """The parts are the outcome and alpha D; `episode_stats` has no effect."""
    del settings
    steps = in_order(columns)
    answer = jnp.where(steps.valid, jnp.exp(columns.answer_logprob[steps.order]), 0.0)
    turn, outcome, penalty = _turns(steps, penalty_in)
    gain = jnp.where(turn, steps.following(answer, 0.0) - answer, 0.0)
    place = segments.segments_of(turn, steps.group, steps.step)
    u = jnp.where(turn, segments.compare(gain, gain, place, turn, normalize="mean", ddof=0, eps=0.0), 0.0)
    squares = jax.ops.segment_sum(u * u, place, len(u))[place]
    u = u / (jnp.sqrt(squares / jnp.maximum(segments.segment_count(place, turn), 1) + 1e-8) + 1e-6)
    later, _ = segments.suffix_sums(u, steps.step, steps.trajectory, gamma)
    left, _ = segments.suffix_sums(turn.astype(jnp.float32), steps.step, steps.trajectory, 1.0)
    gains = alpha * later / jnp.sqrt(jnp.maximum(left, 1.0))
    scale = jnp.where(steps.valid, 1.0 + clip_scale * (2.0 * jax.nn.sigmoid(u) - 1.0), 0.0)
    parts = (gains + outcome - penalty, outcome - penalty, gains, scale)
    return Advantages(*(steps.restored(part) for part in parts))


def _turns(steps: Steps, penalty_in: PenaltyIn) -> tuple[Array, Array, Array]:
    """[N] bool, turns before the last one of their episode; [N] f32, z of the episode's return; [N] f32, penalties."""
    rows = len(steps.valid)
    turn = steps.following(steps.valid, False)
    returns = returns_of(steps, gamma=1.0, penalty_in=penalty_in)
    once = steps.trajectory == jnp.arange(rows, dtype=jnp.int32)
    outcome = segments.compare(
        returns.episode, returns.episode, steps.group, once, normalize="mean_std", ddof=1, eps=1e-6
    )
    return turn, outcome, returns.penalty
