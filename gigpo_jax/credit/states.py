"""From episodes to the states that continuations start from, and from their returns to measured advantages.

In an environment that replays exactly, the state before step t of an episode is its task and the actions before t. With
V(state) the policy's expected sum of rewards minus penalties over the remaining steps, undiscounted,

    A*(s_t, a_t) = r_t - p_t + V(s_{t+1}) - V(s_t),    V = 0 after the last step of an episode.

Neighbouring steps share a state and the episodes of a group share the first one, so a step costs little more than one
state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Step, Trajectory


@dataclass(frozen=True)
class State:
    """Where continuations start: a task (its group's number too), and the actions since the episode's start."""

    group: int
    task: Task
    past: tuple[str, ...]


def choose_steps(steps: Sequence[Step], number: int, seed: int) -> list[int]:
    """All steps of one episode of every task group, then of a second one, and so on until there are enough.

    A larger `number` begins with the same steps. The last episode may be cut.

    Args:
      steps: of whole episodes, as from `finished_steps`.
      number: how many to choose.
      seed: decides which episodes.

    Returns:
      Indices into `steps`.
    """
    queues = _episodes(steps, seed)
    rounds = max(map(len, queues), default=0)
    return [row for r in range(rounds) for queue in queues if r < len(queue) for row in queue[r]][:number]


def first_episodes(steps: Sequence[Step], number: int, seed: int) -> list[int]:
    """The steps of `number` episodes of every task group, those that `choose_steps` takes first; in ascending order."""
    return sorted(row for queue in _episodes(steps, seed) for episode in queue[:number] for row in episode)


def _episodes(steps: Sequence[Step], seed: int) -> list[list[list[int]]]:
    """The rows of each episode by task group, the episodes of a group in random order."""
    episodes: dict[int, dict[int, list[int]]] = {}
    for row, step in enumerate(steps):
        episodes.setdefault(step.group, {}).setdefault(step.trajectory, []).append(row)
    return [
        [of[i] for i in np.random.default_rng((seed, group)).permutation(sorted(of)).tolist()]
        for group, of in sorted(episodes.items())
    ]


def state_at(trajectory: Trajectory, step: int) -> State | None:
    """The state before a step of an episode; None after the last one."""
    if step == len(trajectory.turns):
        return None
    return State(trajectory.group, trajectory.task, tuple(turn.action for turn in trajectory.turns[:step]))


def states_around(trajectories: Sequence[Trajectory], steps: Sequence[Step]) -> list[State]:
    """The states before and after the steps, each once."""
    around = (state_at(trajectories[s.trajectory], t) for s in steps for t in (s.step, s.step + 1))
    return list(dict.fromkeys(state for state in around if state is not None))


def advantages(
    trajectories: Sequence[Trajectory], steps: Sequence[Step], returns: Mapping[State, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The measured advantages.

    Args:
      trajectories: all episodes.
      steps: N steps of theirs.
      returns: state -> [K] f64, K >= 2, the return of each continuation.

    Returns:
      Advantages [N] f64 and their standard errors [N] f64.
    """
    value: dict[State | None, tuple[float, float]] = {None: (0.0, 0.0)}
    value |= {state: (float(x.mean()), float(x.var(ddof=1)) / len(x)) for state, x in returns.items()}
    advantage, error = np.zeros((2, len(steps)))
    for row, s in enumerate(steps):
        here, after = (value[state_at(trajectories[s.trajectory], t)] for t in (s.step, s.step + 1))
        advantage[row] = s.turn.reward - s.turn.penalty + after[0] - here[0]
        error[row] = np.sqrt(here[1] + after[1])
    return advantage, error
