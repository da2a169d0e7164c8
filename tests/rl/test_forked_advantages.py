"""States in which forks begin, and advantages that tell forks from whole episodes."""

from dataclasses import replace

import numpy as np
import pytest

from gigpo_jax.rl.algorithms import ALGORITHMS, find_algorithm, make_advantages
from gigpo_jax.rl.types import StepColumns
from gigpo_jax.rollout.fork_choices import (
    Visits,
    _return_variance,
    choose_surprising,
    choose_uncertain,
    choose_uniform,
)


def list_visits(episodes: list[list[tuple[int, float]]]) -> Visits:
    """Visits of episodes of (state, reward); the surprise is the state's number."""
    rows = [
        (state, number, step, reward, float(state))
        for number, episode in enumerate(episodes)
        for step, (state, reward) in enumerate(episode)
    ]
    columns = map(np.array, zip(*rows, strict=True))
    return Visits(*columns)


def test_the_least_certain_values_are_forked() -> None:
    """State 1 is won once and lost twice: p = 1/3, W = 100 p (1 - p) = 22.2, W / n = 7.4. State 0
    leads there twice and once to 2, which is lost: V = 0.9 x 2/3 x 10/3, and so on; state 3 is
    won each time.
    """
    visits = list_visits(
        [
            [(0, 0.0), (1, 10.0)],
            [(0, 0.0), (2, 0.0), (1, 0.0)],
            [(0, 0.0), (1, 0.0)],
            [(3, 10.0)],
            [(3, 10.0)],
        ]
    )
    # W(1) = 200 / 9. V(1) = 10 / 3, V(2) = 0.9 V(1) = 3, V(0) = 0.9 (2 V(1) + V(2)) / 3 = 2.9.
    # W(2) = 0.81 W(1) = 18, W(0) = mean of (3 - 2.9)^2, (2.7 - 2.9)^2 and 0.81 W(g') = 16.88.
    # Errors: 0: 5.63, 1: 7.41, 2: 18, 3: 0. With the forks that are chosen: 2: 9, 6; 1: 5.56.
    np.testing.assert_allclose(_return_variance(visits, 0.9), [16.88, 200 / 9, 18.0, 0.0])
    rows = choose_uncertain(visits, 5, 0.9)
    assert visits.state[rows].tolist() == [2, 2, 1, 2, 0]
    # The shortest past: state 1 is reached by one action in episode 0.
    assert rows.tolist() == [3, 3, 1, 3, 0]


def test_equal_returns_give_no_reason_to_fork() -> None:
    lost = list_visits([[(0, 0.0), (1, 0.0), (0, 0.0)], [(0, 0.0), (2, 0.0)]])
    for gamma in (0.9, 1.0):
        assert choose_uncertain(lost, 3, gamma).tolist() == [0, 0, 0]


def test_uniform_and_surprising_choices() -> None:
    visits = list_visits([[(0, 0.0), (1, 0.0)], [(0, 0.0), (2, 0.0), (1, 0.0)]])
    # Largest first, then again; the shortest past of state 1 is in episode 0.
    assert choose_surprising(visits, 4).tolist() == [3, 1, 0, 3]
    drawn = choose_uniform(visits, 12, np.random.default_rng(1))
    assert [sorted(drawn[:5]), sorted(drawn[5:10])] == [[0, 1, 2, 3, 4]] * 2
    assert drawn.tolist() == choose_uniform(visits, 12, np.random.default_rng(1)).tolist()


def make_columns(episodes: list[tuple[bool, list[tuple[int, float]]]]) -> StepColumns:
    """Columns of one group of episodes, each (forked, its states and rewards)."""
    rows = [
        (number, step, forked, state, reward, step == len(steps) - 1, steps[-1][1] > 0)
        for number, (forked, steps) in enumerate(episodes)
        for step, (state, reward) in enumerate(steps)
    ]
    trajectory, step, forked, state, reward, is_last, won = map(np.array, zip(*rows, strict=True))
    anchor = np.stack([state, state], 1).astype(np.uint32)
    return StepColumns(
        reward=reward.astype(np.float32),
        penalty=np.where(step == 1, 0.5, 0.0).astype(np.float32),
        trajectory=trajectory.astype(np.int32),
        step=step.astype(np.int32),
        group=np.zeros(len(step), np.int32),
        anchor=anchor,
        mask=np.ones(len(step), bool),
        action=anchor + np.uint32(1),
        past=anchor,
        next_anchor=np.where(is_last[:, None], 0, np.roll(anchor, -1, 0)),
        won=won,
        truncated=is_last & ~won,
        forked=forked,
    )


WHOLE = [
    (False, [(1, 0.0), (2, 0.0), (3, 10.0)]),
    (False, [(1, 0.0), (2, 0.0), (4, 0.0), (2, 0.0)]),
    (False, [(1, 0.0), (5, 1.0)]),
]
FORKS = [(True, [(2, 0.0), (3, 10.0)]), (True, [(2, 0.0), (6, 4.0)])]
# The other algorithms that take forks have the function of gigpo.
FUNCTIONS = ("gigpo", "salt", "graph_values", "g2po", "graphgpo", "gagpo", "vineppo", "carl")
SETTINGS = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}


def test_the_list_of_functions_is_complete() -> None:
    taking = {a.advantages for a in ALGORITHMS.values() if a.takes_forks}
    assert taking == {ALGORITHMS[name].advantages for name in FUNCTIONS}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forks_change_no_episode_advantage_of_whole_episodes(name: str) -> None:
    own = {"episode": 1.0} if name == "graph_values" else {}
    preset = "paper" if name == "gagpo" else "verl_agent"
    advantages = make_advantages(name, preset, **SETTINGS, **own)
    columns = make_columns(WHOLE + FORKS)
    result = advantages(columns)
    whole = ~columns.forked
    alone = advantages(replace(columns, mask=whole))
    np.testing.assert_array_equal(result.episode[whole], alone.episode[whole])
    # Forks are rows of the states that they pass.
    if name != "salt":
        assert np.abs(np.asarray(result.step - alone.step)[whole]).max() > 0.01


@pytest.mark.parametrize("preset", ["paper", pytest.param("verl_agent", marks=pytest.mark.slow)])
def test_without_forks_the_column_says_nothing(preset: str) -> None:
    columns = make_columns(WHOLE)
    advantages = make_advantages("gigpo", preset, **SETTINGS)
    plain = advantages(replace(columns, forked=None))
    np.testing.assert_array_equal(advantages(columns).total, plain.total)


@pytest.mark.parametrize("preset", ["paper", "verl_agent"])
def test_a_fork_is_compared_with_all_that_followed_its_first_state(preset: str) -> None:
    """Futures of state 2 with penalties: 9.5 (row 1: -0.5 + 10), -0.5 and 0 in episode 1, 9.5 and
    3.5 in the forks; their mean is 4.4.
    """
    settings = SETTINGS | {"normalize": "mean"}
    result = make_advantages("grpo", preset, **settings)(make_columns(WHOLE + FORKS))
    np.testing.assert_allclose(result.episode[-4:], [5.1, 5.1, -0.9, -0.9], rtol=1e-5)
    result = make_advantages("grpo", preset, **SETTINGS)(make_columns(WHOLE + FORKS))
    deviation = np.std([9.5, -0.5, 0.0, 9.5, 3.5], ddof=1)
    np.testing.assert_allclose(result.episode[-4:], np.repeat([5.1, -0.9], 2) / deviation, 1e-5)


def test_a_wrapper_takes_forks_if_its_base_does() -> None:
    assert find_algorithm("salt", {"base": "gigpo"}).takes_forks
    assert not find_algorithm("salt", {"base": "hgpo"}).takes_forks
    assert not find_algorithm("repeat_discount", {"base": "gigpo"}).takes_forks
