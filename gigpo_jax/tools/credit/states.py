"""States that continuations start from, and measured advantages from their returns.

In an environment that replays exactly, the state before step t of an episode is its task and the
actions before t, in a conversation the responses, and the plan if there is one. A summary is a step
with reward 0. With V(state) the policy's expected sum of rewards minus penalties over the remaining
steps, undiscounted,

    A*(s_t, a_t) = r_t - p_t + V(s_{t+1}) - V(s_t),    V = 0 after the last step of an episode.

Neighbouring steps share a state and the episodes of a group share the first one, so a step costs
little more than one state.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Step, Trajectory


@dataclass(frozen=True)
class State:
    """Start of continuations: a task and its past.

    Attributes:
      group: Task group.
      task: Task.
      past: Actions so far.
      responses: Token ids of the responses so far, including summaries, which a
        conversation shows; empty where each step has a prompt of its own.
      plan: Plan that the policy has stated; None: none yet.
    """

    group: int
    task: Task
    past: tuple[str, ...]
    responses: tuple[tuple[int, ...], ...] = ()
    plan: str | None = None


def choose_steps(steps: Sequence[Step], number: int, seed: int) -> list[int]:
    """Chooses steps episode by episode, in turn from every group.

    All steps of one episode of every task group come first, then of a second episode, and so on.
    A larger `number` begins with the same steps. The last episode may be cut.

    Args:
      steps: Steps of whole episodes, as from `finished_steps`.
      number: Number of steps to choose.
      seed: Seed of the order of episodes.

    Returns:
      Indices into `steps`.
    """
    queues = _queue_episodes(steps, seed)
    chosen_rows: list[int] = []
    # Whole episodes, because neighbouring steps share a state; groups in turn, because they are
    # what the intervals resample.
    for place in range(max(map(len, queues), default=0)):
        for queue in queues:
            if place < len(queue):
                chosen_rows += queue[place]
    return chosen_rows[:number]


def first_episodes(steps: Sequence[Step], number: int, seed: int) -> list[int]:
    """Rows of each task group's `number` episodes that `choose_steps` takes first, sorted."""
    rows: list[int] = []
    for queue in _queue_episodes(steps, seed):
        for episode in queue[:number]:
            rows += episode
    return sorted(rows)


def _queue_episodes(steps: Sequence[Step], seed: int) -> list[list[list[int]]]:
    """Rows by task group and episode, episodes in random order."""
    # group -> trajectory -> rows of its steps, in their order.
    groups: dict[int, dict[int, list[int]]] = {}
    for row, step in enumerate(steps):
        groups.setdefault(step.episode.group, {}).setdefault(step.trajectory, []).append(row)
    queues = []
    for group, episodes in sorted(groups.items()):
        # A generator for each group: its order stays the same if other groups come or go.
        order = np.random.default_rng((seed, group)).permutation(sorted(episodes))
        queues.append([episodes[trajectory] for trajectory in order.tolist()])
    return queues


def state_at(trajectory: Trajectory, place: int) -> State | None:
    """The state before a turn; None after the last one."""
    if place == len(trajectory.turns):
        return None
    turns = trajectory.turns
    earlier_turns = turns[:place]
    actions = tuple(turn.action for turn in earlier_turns if not turn.is_text)
    past = trajectory.past.actions + actions
    responses: tuple[tuple[int, ...], ...] = ()
    # In a conversation two states with the same actions differ if their responses do.
    if any(later.continues(turn) for turn, later in itertools.pairwise(turns)):
        responses = tuple(tuple(turn.response_tokens.tolist()) for turn in earlier_turns)
    return State(trajectory.group, trajectory.task, past, responses, turns[place].plan)


def states_around(trajectories: Sequence[Trajectory], steps: Sequence[Step]) -> list[State]:
    """The states before and after the steps, each once."""
    # A dict keeps the order of insertion. With more steps the old states keep their places, and
    # with them their lines in the file and their random keys.
    states: dict[State, None] = {}
    for step in steps:
        for position in (step.turn_index, step.turn_index + 1):
            state = state_at(trajectories[step.trajectory], position)
            if state is not None:
                states[state] = None
    return list(states)


def measured_advantages(
    trajectories: Sequence[Trajectory], steps: Sequence[Step], returns: Mapping[State, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Measured advantages and their standard errors.

    Args:
      trajectories: All episodes.
      steps: N of their steps.
      returns: state -> [K] f64, K >= 2, the return of each continuation.

    Returns:
      Advantages [N] f64 and standard errors [N] f64.
    """
    # None is the state after the last step, whose value is 0 by definition and has no noise.
    means: dict[State | None, float] = {None: 0.0}
    variances: dict[State | None, float] = {None: 0.0}
    for start, values in returns.items():
        means[start] = float(values.mean())
        variances[start] = float(values.var(ddof=1)) / len(values)
    advantage = np.zeros(len(steps))
    error = np.zeros(len(steps))
    for row, step in enumerate(steps):
        trajectory = trajectories[step.trajectory]
        state = state_at(trajectory, step.turn_index)
        next_state = state_at(trajectory, step.turn_index + 1)
        gain = means[next_state] - means[state]
        advantage[row] = step.turn.reward - step.turn.penalty + gain
        # The two states have continuations of their own, so their errors are independent and add
        # up.
        error[row] = np.sqrt(variances[state] + variances[next_state])
    return advantage, error
