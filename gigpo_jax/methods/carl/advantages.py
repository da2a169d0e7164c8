"""CARL (arXiv 2512.04949): credit of actions in the tree of a group's episodes.

A node is the task with all actions before a step; a step is an edge to the next node. With R the
return of an episode:

    R(node) = mean of R(child) over the steps from the node, recursively; R(leaf) = R
    A(step) = R(child) - R(node)

A fork adds steps to its node, so it changes the means of the earlier nodes through that node alone.
Equal rewards lie before all leaves of a node, so A(step) = r - p + V(child) - V(node) with the
values of `gigpo_jax.rl.graph`, whose graph is the tree here.

Steps that leave non-critical states are in no loss. Our reading: critical are the nodes that two or
more steps leave. These are the states that forks begin in, which have the highest entropy
(`train.fork_choice=entropy`), the start of the task, and states to which several episodes came by
the same actions. From all others A = 0.

Our choices: the threshold of the entropy, which is not known to us, follows from `train.forks`;
forks begin in states of the first episodes, not of other forks; penalties are part of rewards.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.graph import build_graph, solve_values
from gigpo_jax.rl.types import StepColumns


def carl(columns: StepColumns, **settings: Any) -> Advantages:
    """Compares the children of each node; no setting has an effect."""
    del settings
    steps = order_steps(replace(columns, anchor=columns.past))
    reward = steps.reward - steps.penalty
    tree = build_graph(steps, 1.0)
    step = steps.restore(tree.gae(reward, solve_values(tree, reward), lam=0.0))
    is_critical = steps.valid & (segments.count_members(steps.anchor, steps.valid) > 1)
    learned = steps.restore(is_critical) > 0
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step, learned=learned)
