"""The states in which forks begin (docs/forks.md)."""

from collections.abc import Sequence

import numpy as np

from gigpo_jax.rollout import fork_choices
from gigpo_jax.rollout.forks import Forking
from gigpo_jax.trajectory import BEGINNING, Past, Trajectory

# Last number of the seed of the draws; seeds of other draws do not have it.
_DRAWS = (1 << 31) + 1


def choose_pasts(
    forking: Forking, episodes: Sequence[Trajectory], seed: tuple[int, int, int]
) -> list[Past]:
    """Chooses the starts of a group's forks.

    It is a pure function of its arguments, so that a resumed run chooses the same starts.

    Args:
      forking: Number and choice of the starts.
      episodes: First episodes of the group; aborted ones are ignored.
      seed: Seed of the run, iteration and group.

    Returns:
      `forking.number` pasts; without a finished episode all are the start of the task.
    """
    finished = [episode for episode in episodes if not episode.aborted]
    steps = [(episode, number) for episode in finished for number in range(len(episode.turns))]
    if not steps:
        return [BEGINNING] * forking.number
    visits = _list_visits(steps)
    if forking.choice == "uncertainty":
        rows = fork_choices.choose_uncertain(visits, forking.number, forking.gamma)
    elif forking.choice == "entropy":
        rows = fork_choices.choose_surprising(visits, forking.number)
    else:
        generator = np.random.default_rng((*seed, _DRAWS))
        rows = fork_choices.choose_uniform(visits, forking.number, generator)
    return [past_before(*steps[row]) for row in rows.tolist()]


def _list_visits(steps: Sequence[tuple[Trajectory, int]]) -> fork_choices.Visits:
    """The visits of pairs (episode, index of a turn)."""
    turns = [episode.turns[number] for episode, number in steps]
    anchors = {turn.anchor: None for turn in turns}
    numbers = {anchor: number for number, anchor in enumerate(anchors)}
    return fork_choices.Visits(
        state=np.array([numbers[turn.anchor] for turn in turns]),
        episode=np.array([episode.member for episode, _ in steps]),
        step=np.array([number for _, number in steps]),
        reward=np.array([turn.reward - turn.penalty for turn in turns]),
        surprise=np.array([turn.uncertainty for turn in turns]),
    )


def past_before(episode: Trajectory, number: int) -> Past:
    """The actions of the task before a turn."""
    past = episode.past
    earlier_turns = episode.turns[:number]
    turn = episode.turns[number]
    return Past(
        past.actions + tuple(earlier.action for earlier in earlier_turns),
        (turn.observation, turn.anchor),
        past.reward + sum(earlier.reward for earlier in earlier_turns),
        past.tokens + sum(len(earlier.response_tokens) for earlier in earlier_turns),
    )
