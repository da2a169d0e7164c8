"""G2PO (arXiv 2606.22995): values of states, compared at each state and over the task.

With g the anchor state of step t, g' the anchor state of the next step, T the steps of the episode
and R its return:

    V(g) = mean over the rows of g of gamma^(T - t) R
    n    = V(g'); at a last step R
    c_1  = z(n - p) over the rows of g, 0 where g has one row
    c_2  = z(n - V(g)) over the rows of the task
    A    = A_E + step_weight (c_1 + c_2)

The formula is from the authors' code, with gamma 0.95 and z of ddof 1; `normalize="mean"`
divides nowhere. A_E is the episode advantage of GiGPO, there over rows, as with the preset
`verl_agent`.

Our choices: at a last step the authors' code has 10 if the episode is won, else 0. Here it is R,
which is the same where success pays 10. With `penalty_in="reward"` penalties are part of R and are
not subtracted in c_1. Where steps of a trajectory are missing, T - t counts them.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, PenaltyIn, compute_returns, order_steps
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.graph import build_graph
from gigpo_jax.rl.types import StepColumns


def g2po(
    columns: StepColumns,
    *,
    gamma: float,
    step_weight: float,
    normalize: str,
    penalty_in: PenaltyIn,
    ddof: int,
    **settings: Any,
) -> Advantages:
    """Adds both comparisons to the episode advantage.

    Args:
      columns: N steps.
      gamma: Discount factor of the outcome, from step to step.
      step_weight: Weight of both comparisons.
      normalize: "mean_std" or "mean".
      penalty_in: "reward" or "row".
      ddof: Number subtracted from the count in a variance, 0 or 1.
      **settings: Settings of `gigpo_advantages` for the episode advantage.
    """
    steps = order_steps(columns)
    rows = len(steps.valid)
    graph = build_graph(steps, gamma)
    returns = compute_returns(steps, gamma=gamma, penalty_in=penalty_in)
    last_step = jax.ops.segment_max(steps.step, steps.trajectory, rows)[steps.trajectory]
    # A last step has one step left, so its discounted outcome is gamma R, as in the authors' code.
    steps_left = (last_step - steps.step + 1).astype(jnp.float32)
    value = graph.average(jnp.power(jnp.float32(gamma), steps_left) * returns.episode)
    following = jnp.where(graph.is_followed, graph.next_values(value), returns.episode)

    def compare(values: jax.Array, segment: jax.Array) -> jax.Array:
        return segments.compare_values(
            values, values, segment, steps.valid, normalize=normalize, ddof=ddof, eps=1e-6
        )

    # The penalty counts here and not over the task, as in the authors' code. Under "reward" it is
    # 0: R contains it.
    at_state = compare(following - returns.penalty, steps.anchor)
    # A state with one row has nothing to compare.
    at_state = jnp.where(graph.visits > 1.0, at_state, 0.0)
    over_task = compare(following - value, steps.group)
    step = steps.restore(at_state + over_task)
    episode = gigpo(
        columns,
        gamma=gamma,
        step_weight=step_weight,
        normalize=normalize,
        penalty_in=penalty_in,
        ddof=ddof,
        **settings,
    ).episode
    return Advantages(total=episode + step_weight * step, episode=episode, step=step)
