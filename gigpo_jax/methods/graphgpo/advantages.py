"""GraphGPO (arXiv 2605.26684): steps are compared by how near they come to success.

The graph of a task group has an edge of cost 1 from the anchor state g of each step to the anchor
state g' of the next one. The last step of a won episode leads to success, the last step of a lost
one to a state from which nothing is reached. With d(g) the shortest distance to success:

    q = 10 * 0.1^d(g')
    A = A_E + step_weight z(q)          z over the rows of g, 0 where g has one row

A state from which success is not reached has the largest distance of its group plus 1. Without a
success in the group the second term is 0. Source: a third party's code, which we think is right.
The 0.1 is theirs. The paper has the exponent d(g') + 1, a common factor that z removes. A_E is the
episode advantage of GiGPO.

Our choices: an edge over missing steps costs 1 too. Penalties count in A_E alone.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.graph import build_graph, distances
from gigpo_jax.rl.types import StepColumns

OMEGA = 0.1  # factor of a step's worth for each further step to success, of a third party's code


def graphgpo(
    columns: StepColumns,
    *,
    step_weight: float,
    normalize: str,
    ddof: int,
    **settings: Any,
) -> Advantages:
    """Adds the comparison of distances to the episode advantage; `gamma` has no effect.

    Args:
      columns: N steps.
      step_weight: Weight of the comparison.
      normalize: "mean_std" or "mean".
      ddof: Number subtracted from the count in a variance, 0 or 1.
      **settings: Settings of `gigpo_advantages` for the episode advantage.
    """
    steps = order_steps(columns)
    rows = len(steps.valid)
    # Only its edges are used, so the discount factor does not matter.
    graph = build_graph(steps, 1.0)
    # The edges to success: last steps of won episodes.
    wins = steps.valid & ~graph.is_followed & columns.won[steps.order]
    distance = distances(graph, wins)
    finite = jnp.where(jnp.isfinite(distance), distance, 0.0)
    # Of the group: what is far in one task may be near in another.
    farthest = jax.ops.segment_max(finite, steps.group, rows)[steps.group]
    # Infinite distances become one more than the farthest, as in the code that this follows.
    distance = jnp.minimum(distance, farthest + 1.0)
    # A lost last step leads nowhere, so it ranks with the states from which success is not reached.
    end = jnp.where(wins, 0.0, farthest + 1.0)
    next_distance = jnp.where(graph.is_followed, graph.next_values(distance), end)
    worth = 10.0 * jnp.power(jnp.float32(OMEGA), next_distance)
    compared = segments.compare_values(
        worth, worth, steps.anchor, steps.valid, normalize=normalize, ddof=ddof, eps=1e-6
    )
    # Without a success every distance is the same bound, and the comparison says nothing.
    has_success = segments.count_members(steps.group, wins) > 0
    step = steps.restore(jnp.where(has_success & (graph.visits > 1.0), compared, 0.0))
    episode = gigpo(
        columns, step_weight=step_weight, normalize=normalize, ddof=ddof, **settings
    ).episode
    return Advantages(total=episode + step_weight * step, episode=episode, step=step)
