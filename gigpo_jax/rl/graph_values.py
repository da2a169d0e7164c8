"""Values of states by backups over the graph of a task group: a proposal of this project.

With the nodes and edges of `gigpo_jax.rl.graph`, the anchor state g of a step and the anchor state
g' of the next step of its episode:

    V(g) = mean over the rows of g of r - p + gamma V(g')       its fixed point; V = 0 after the end
    d_t  = r_t - p_t + gamma V(g_(t+1)) - V(g_t)
    B_t  = sum over k >= t of (gamma lam)^(k-t) d_k             GAE over the steps of an episode
    A    = (B - mean B) / F + episode * A_E                     mean and F over the task group

A_E is the episode advantage of GiGPO. A value pools all episodes that pass its state: they share
their futures, not only their returns. The same V is known as the certainty-equivalence or LSTD
solution; Gated BEPO (arXiv 2608.06861) has it too, by its abstract.

`shrinkage` adds k visits to every state: the mean is of n + k outcomes. It holds back the values of
states that were seen once or twice. The outcome of such a visit is the mean return of the group.

Our choices: an episode that the limit of steps ended has V = 0 after its last step, as in
`gigpo_jax.rl.gae`. With `truncation="ignore"` that step counts in no mean and has d = 0: the limit
says nothing about its state. A penalty is part of the reward of its step, whatever the preset says;
the preset decides on A_E and on ddof.
Differences within 1e-5 of the group's largest reward are rounding and count as 0.
"""

from typing import Any

from gigpo_jax.core.settings import FRACTION, NOT_NEGATIVE, Setting, one_of
from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.graph import build_graph, solve_values
from gigpo_jax.rl.shared_settings import STEP
from gigpo_jax.rl.types import StepColumns


def graph_values(
    columns: StepColumns,
    *,
    gamma: float,
    lam: float,
    episode: float,
    shrinkage: float,
    truncation: str,
    normalize: str,
    ddof: int,
    **settings: Any,
) -> Advantages:
    """Compares the steps of a task by differences between the values of their states.

    Args:
      columns: N steps.
      gamma: Discount factor from step to step.
      lam: lambda of GAE; 0: a step gets its own difference alone.
      episode: Weight of the episode advantage.
      shrinkage: Number of pseudo-visits of each state.
      truncation: "end" or "ignore", outcome of the last step before the limit of steps.
      normalize: "mean_std" or "mean".
      ddof: Number subtracted from the count in a variance, 0 or 1.
      **settings: Settings of `gigpo_advantages` for the episode advantage.
    """
    steps = order_steps(columns)
    # Values and differences have the same rewards: a penalty that all steps of a state
    # pay tells nothing.
    reward = steps.reward - steps.penalty
    # The limit ended these episodes: their last rewards say nothing about the values of states.
    left_out = columns.truncated[steps.order] if truncation == "ignore" else None
    graph = build_graph(steps, gamma, left_out=left_out, pseudo_visits=shrinkage)
    gae = graph.gae(reward, solve_values(graph, reward), lam)
    compared = segments.compare_values(
        gae, gae, steps.group, steps.valid, normalize=normalize, ddof=ddof, eps=1e-6
    )
    step = steps.restore(compared)
    whole_episodes = gigpo(columns, gamma=gamma, normalize=normalize, ddof=ddof, **settings)
    weighted = episode * whole_episodes.episode
    return Advantages(total=weighted + step, episode=weighted, step=step)


METHOD = Algorithm(
    advantages=graph_values,
    columns=("truncated",),
    settings={
        # 0: a longer sum of differences brings back the noise of the episode's own future.
        "lam": Setting(0.0, "lambda of GAE on the values of states", FRACTION),
        "episode": Setting(0.0, "weight of the episode advantage", NOT_NEGATIVE),
        "shrinkage": Setting(
            0.0,
            "number of visits with the mean return of the group, added to each state",
            NOT_NEGATIVE,
        ),
        "truncation": Setting(
            "end",
            "outcome of the last step before the limit of steps: end of the episode, or ignore",
            one_of("end", "ignore"),
        ),
    },
    fixed=STEP,
    takes_forks=True,
)
