"""GAGPO (arXiv 2605.13217): GAE on the mean returns of states.

    V(g) = mean over the rows of anchor state g of the discounted return
    d_t  = r_t + gamma V(g_(t+1)) - V(g_t)                 V = 0 after the last step
    A_t  = z(sum over k >= t of (gamma lam)^(k-t) d_k)     z over the rows of the task, ddof 1

There is no episode term; the ratio of the loss is the geometric mean over the response. Source: two
reading notes of the paper. They do not have gamma, lam and the clips.

Our choices: gamma 0.95, lam 0.8 and the clips of GSPO. A penalty is part of the reward of its step,
whatever the preset says. A third party's code groups steps by their index in place of the state;
this is not here.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.graph import build_graph
from gigpo_jax.rl.types import StepColumns

LAMBDA = 0.8  # of GAE, our choice


def gagpo(
    columns: StepColumns, *, gamma: float, normalize: str, ddof: int, **settings: Any
) -> Advantages:
    """Whitens GAE over the task; the episode part is zero.

    Args:
      columns: N steps.
      gamma: Discount factor from step to step.
      normalize: "mean_std" or "mean".
      ddof: Number subtracted from the count in a variance, 0 or 1.
      **settings: Other settings of `gigpo_advantages`, without effect.
    """
    del settings
    steps = order_steps(columns)
    graph = build_graph(steps, gamma)
    reward = steps.reward - steps.penalty
    # Means of returns, as published. `graph.solve_values` would also pool what follows the state.
    returns, _ = segments.suffix_sums(reward, steps.step, steps.trajectory, gamma)
    gae = graph.gae(reward, graph.average(returns), LAMBDA)
    step = segments.compare_values(
        gae, gae, steps.group, steps.valid, normalize=normalize, ddof=ddof, eps=1e-6
    )
    step = steps.restore(step)
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step)
