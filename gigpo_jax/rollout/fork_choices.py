"""States in which further episodes of a task group begin: forks. numpy and scipy only.

The first episodes of a group visit states; a choice is the row of a visit, from whose state an
episode continues. `choose_uniform` is after arXiv 2410.01679, `choose_surprising` after arXiv
2512.04949, and `choose_uncertain` is a proposal of this project.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import spsolve


class Visits(NamedTuple):
    """The N steps of a group's episodes, in order.

    Attributes:
      state: [N] i, number of the state, from 0 without gaps.
      episode: [N] i, episode of the step.
      step: [N] i, number of actions since the start of the task.
      reward: [N] f, reward less penalty.
      surprise: [N] f, nats; mean entropy over the response's tokens, or mean of their negative
        log-probabilities, which estimates it.
    """

    state: np.ndarray
    episode: np.ndarray
    step: np.ndarray
    reward: np.ndarray
    surprise: np.ndarray


def choose_uniform(visits: Visits, number: int, generator: np.random.Generator) -> np.ndarray:
    """Draws visits with equal probability, none twice while there are others.

    Returns:
      [number] i, rows of the visits.
    """
    rows = len(visits.state)
    orders = [generator.permutation(rows) for _ in range(-(-number // rows))]
    return np.concatenate(orders)[:number]


def choose_surprising(visits: Visits, number: int) -> np.ndarray:
    """Chooses the states with the largest mean surprise, none twice while there are others.

    Returns:
      [number] i, rows of the visits.
    """
    surprise = np.bincount(visits.state, visits.surprise) / np.bincount(visits.state)
    order = np.argsort(-surprise, kind="stable")
    return _shortest_pasts(visits)[np.resize(order, number)]


def choose_uncertain(visits: Visits, number: int, gamma: float) -> np.ndarray:
    """Chooses the states whose values have the largest standard error.

    With V the values of `gigpo_jax.rl.graph` and n the visits of a state g, the variance of what
    follows g in the graph is the fixed point of (Sobel, 1982)

        W(g) = mean over the rows of g of (r + gamma V(g') - V(g))^2 + gamma^2 W(g')

    and the squared standard error W(g) / n. Each fork counts as a visit of its state for the
    next choice. If all errors are 0, as in a group of equal returns, the state is the first one.

    Args:
      visits: Visits of the first episodes.
      number: Number of forks.
      gamma: Discount factor from step to step, from 0 to 1.

    Returns:
      [number] i, rows of the visits.
    """
    variance = _return_variance(visits, gamma)
    count = np.bincount(visits.state)
    chosen_states = []
    for _ in range(number):
        # Rounded: equal errors must not be told apart by the order of a sum.
        state = int(np.argmax(np.round(variance / count, 9)))
        count[state] += 1
        chosen_states.append(state)
    return _shortest_pasts(visits)[chosen_states]


def _return_variance(visits: Visits, gamma: float) -> np.ndarray:
    """Variance of the graph's return from each state, [S] f."""
    state = visits.state
    count = np.bincount(state)
    is_followed = np.append(visits.episode[1:] == visits.episode[:-1], False)
    rows = np.flatnonzero(is_followed)
    shares = 1 / count[state[rows]]
    transitions = csr_array((shares, (state[rows], state[rows + 1])), shape=(len(count),) * 2)
    identity = eye_array(len(count), format="csr")

    def solve(factor: float, reward: np.ndarray) -> np.ndarray:
        # Every episode ends, so the matrix is regular for gamma 1 too.
        system = (identity - factor * transitions).tocsc()
        return spsolve(system, np.bincount(state, reward) / count)

    value = solve(gamma, visits.reward)
    next_value = np.where(is_followed, value[np.roll(state, -1)], 0.0)
    error = visits.reward + gamma * next_value - value[state]
    return solve(gamma**2, error**2)


def _shortest_pasts(visits: Visits) -> np.ndarray:
    """Returns each state's visit with the shortest past, [S] i.

    This past costs the fewest replayed steps and leaves the most steps before the limit.
    """
    order = np.argsort(visits.step, kind="stable")
    _, first = np.unique(visits.state[order], return_index=True)
    return order[first]
