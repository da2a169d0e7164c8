"""IGPO (arXiv 2510.14967) and A2TGPO (arXiv 2605.06200): turns earn information about the answer.

l_t is the mean log-probability of the answer's tokens behind the prompt of step t (the column
`answer_logprob`), so turn t tells l_(t+1) - l_t. The last turn of an episode gives the answer and
earns the outcome, R. z is (x - mean) / (std + 1e-6) over the task group, gains pooled over all
turns, outcomes once an episode; 0 where the standard deviation is 0.

    IGPO    A_t = sum over k >= t of gamma^(k-t) z_k

    A2TGPO  g_t = exp(l_(t+1)) - exp(l_t)
            u_t = (g_t - mean) / (sqrt(variance + 1e-8) + 1e-6)     over the group's turns
                                                                    with the same index
            D_t = sum over j >= t of gamma^(j-t) u_j / sqrt(n - t)  for the n turns before the
                                                                    last one
            A_t = alpha D_t + z(R);  clips of turn t times 1 + clip_scale (2 sigmoid(u_t) - 1)

Our choices: the papers keep the whole dialogue in one context, here l_t is behind the step's own
prompt; the outcome is the reward of the environment (exact match), not F1; with `penalty_in="row"`
the penalty of a step is taken from its advantage. z has ddof 1; the variance of u has ddof 0, as in
the code of A2TGPO, so gains far below 1e-4 count little.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, PenaltyIn, Steps, compute_returns, order_steps
from gigpo_jax.rl.neighbours import following_values
from gigpo_jax.rl.types import StepColumns


def igpo(
    columns: StepColumns, *, gamma: float, penalty_in: PenaltyIn, **settings: Any
) -> Advantages:
    """Adds discounted gains of turns to the episode's outcome.

    The episode part is the outcome's, the step part the gains'. `episode_stats` has no effect.
    """
    del settings
    steps = order_steps(columns)
    answer = jnp.where(steps.valid, columns.extra["answer_logprob"][steps.order], 0.0)
    turn, outcome, penalty = _find_turns(steps, penalty_in)
    # A turn earns the rise of the answer's log-probability from its own prompt to the next one.
    gain = jnp.where(turn, following_values(steps, answer, 0.0) - answer, 0.0)
    z = segments.compare_values(
        gain, gain, steps.group, turn, normalize="mean_std", ddof=1, eps=1e-6
    )

    # The outcome stands at the last step alone, and reaches earlier ones discounted like the gains.
    last_outcome = jnp.where(steps.valid & ~turn, outcome, 0.0)
    gains, _ = segments.suffix_sums(jnp.where(turn, z, 0.0), steps.step, steps.trajectory, gamma)
    outcomes, _ = segments.suffix_sums(last_outcome, steps.step, steps.trajectory, gamma)
    return Advantages(
        total=steps.restore(gains + outcomes - penalty),
        episode=steps.restore(outcomes - penalty),
        step=steps.restore(gains),
    )


# Of a copy of the authors' code: the weight of gains, and the largest relative change of a turn's
# clips by its gain.
ALPHA = 0.3
CLIP_SCALE = 0.3


def a2tgpo(
    columns: StepColumns,
    *,
    gamma: float,
    penalty_in: PenaltyIn,
    **settings: Any,
) -> Advantages:
    """Adds scaled gains to the outcome, and widens or narrows the clips of each turn by its gain.

    The episode part is the outcome, the step part alpha D. `episode_stats` has no effect.
    """
    del settings
    steps = order_steps(columns)
    # Gains are of probabilities here, of log-probabilities in IGPO.
    answer = jnp.where(steps.valid, jnp.exp(columns.extra["answer_logprob"][steps.order]), 0.0)
    turn, outcome, penalty = _find_turns(steps, penalty_in)
    gain = jnp.where(turn, following_values(steps, answer, 0.0) - answer, 0.0)

    # u: gains compared with the gains of turns with the same index. `compare_values` has no
    # variance with an epsilon inside the root, so the division stands here.
    peers = segments.number_segments(turn, steps.group, steps.step)
    centred = segments.compare_values(gain, gain, peers, turn, normalize="mean", ddof=0, eps=0.0)
    u = jnp.where(turn, centred, 0.0)
    squares = jax.ops.segment_sum(u * u, peers, len(u))[peers]
    variance = squares / jnp.maximum(segments.count_members(peers, turn), 1)
    u = u / (jnp.sqrt(variance + 1e-8) + 1e-6)

    gains, _ = segments.suffix_sums(u, steps.step, steps.trajectory, gamma)
    remaining_turns, _ = segments.suffix_sums(
        turn.astype(jnp.float32), steps.step, steps.trajectory, 1.0
    )
    # A sum of n standardised gains grows with sqrt(n): early turns would outweigh late ones.
    gains = ALPHA * gains / jnp.sqrt(jnp.maximum(remaining_turns, 1.0))
    # 2 sigmoid(u) - 1 is between -1 and 1: the scale stays within CLIP_SCALE of 1. A
    # last step has u = 0.
    scale = jnp.where(steps.valid, 1.0 + CLIP_SCALE * (2.0 * jax.nn.sigmoid(u) - 1.0), 0.0)
    return Advantages(
        total=steps.restore(gains + outcome - penalty),
        episode=steps.restore(outcome - penalty),
        step=steps.restore(gains),
        clip_scale=steps.restore(scale),
    )


def _find_turns(steps: Steps, penalty_in: PenaltyIn) -> tuple[Array, Array, Array]:
    """Marks the turns and standardises the outcomes of their episodes.

    Returns:
      [N] bool, turns before the last one of their episode; [N] f32, z of the episode's return; [N]
      f32, penalties.
    """
    rows = len(steps.valid)
    turn = following_values(steps, steps.valid, False)
    returns = compute_returns(steps, gamma=1.0, penalty_in=penalty_in)
    # Once an episode, not once a turn: long episodes do not weigh more.
    is_first_row = steps.trajectory == jnp.arange(rows, dtype=jnp.int32)
    outcome = segments.compare_values(
        returns.episode,
        returns.episode,
        steps.group,
        is_first_row,
        normalize="mean_std",
        ddof=1,
        eps=1e-6,
    )
    return turn, outcome, returns.penalty
