"""VinePPO and CARL by hand, and against recursions over the episodes in float64."""

from collections import defaultdict
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.loss_weights import episode_weights
from gigpo_jax.learner.samples import step_samples, training_samples
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.rl.algorithms import find_algorithm, make_advantages
from gigpo_jax.trajectory import FORKS, Past, Step, StepCredit, Trajectory, finished_steps
from tests.turns import make_turn

SETTINGS = {"gamma": 0.9, "step_weight": 0.5, "normalize": "mean_std"}
TASK = Task("t", "", "train")
Episode = tuple[str, str, list[float]]  # replayed and own actions, and rewards


def make_steps(*groups: list[Episode], penalty: float = 0.0) -> list[Step]:
    """Rows of groups; an action is a letter, and "b" costs the penalty."""
    trajectories = []
    for group, episodes in enumerate(groups):
        for member, (past, actions, rewards) in enumerate(episodes):
            turns = [
                make_turn(action=action, reward=reward, penalty=penalty * (action == "b"))
                for action, reward in zip(actions, rewards, strict=True)
            ]
            start = Past(tuple(past), source=FORKS)
            trajectories.append(Trajectory(TASK, group, member, turns, past=start))
    return finished_steps(trajectories)


@cache
def compiled(name: str):
    return jax.jit(make_advantages(name, "paper", **SETTINGS))


def estimate(name: str, steps: list[Step]) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and rows of the loss."""
    result = compiled(name)(step_columns(steps, needs=("past", "forked")))
    np.testing.assert_array_equal(result.total, result.step)
    assert not np.any(result.episode)
    assert not np.any(result.total[len(steps) :])
    assert not np.any(result.learned[len(steps) :])
    return np.asarray(result.total)[: len(steps)], np.asarray(result.learned)[: len(steps)]


def random_groups(seed: int) -> list[list[Episode]]:
    """Whole episodes over three actions and forks in their states; early histories are shared."""
    generator = np.random.default_rng(seed)

    def play(past: str) -> Episode:
        length = int(generator.integers(1, 7))
        actions = "".join(generator.choice(list("abc"), length))
        # One reward an action: equal histories have equal rewards, as in replays.
        rewards = [float("abc".index(action)) / 4 for action in actions]
        rewards[-1] += float(generator.choice([0.0, 10.0]))
        return past, actions, rewards

    groups = []
    for whole in (1, 3, 6):
        episodes = [play("") for _ in range(whole)]
        for _ in range(8):
            _, actions, _ = episodes[generator.integers(whole)]
            episodes.append(play(actions[: generator.integers(len(actions))]))
        groups.append(episodes)
    return groups


def list_rows(episodes: list[Episode], penalty: float) -> list[list[tuple[str, float]]]:
    """(history before the step, reward less penalty) of each step of each episode."""
    return [
        [
            (past + actions[:number], reward - penalty * (actions[number] == "b"))
            for number, reward in enumerate(rewards)
        ]
        for past, actions, rewards in episodes
    ]


def vineppo_oracle(rows: list[list[tuple[str, float]]]) -> list[float]:
    returns = defaultdict(list)
    for episode in rows:
        returns[episode[0][0]].append(sum(reward for _, reward in episode))
    values = {history: np.mean(futures) for history, futures in returns.items()}
    advantages = []
    for episode in rows:
        places = [n for n, (history, _) in enumerate(episode) if history in values]
        for start, end in zip(places, [*places[1:], len(episode)], strict=True):
            gain = sum(reward for _, reward in episode[start:end]) - values[episode[start][0]]
            if end < len(episode):
                gain += values[episode[end][0]]
            is_alone = start == 0 and len(returns[""]) == 1
            # A fork begins behind the start of the task.
            advantages += [0.0 if episode[0][0] or is_alone else gain] * (end - start)
    return advantages


def carl_oracle(rows: list[list[tuple[str, float]]]) -> list[float]:
    leaving = defaultdict(list)
    for episode in rows:
        for number, (history, reward) in enumerate(episode):
            following = episode[number + 1][0] if number + 1 < len(episode) else None
            leaving[history].append((reward, following))

    def value(history: str | None) -> float:
        if history is None:
            return 0.0
        return float(np.mean([reward + value(after) for reward, after in leaving[history]]))

    advantages = []
    for episode in rows:
        for number, (history, reward) in enumerate(episode):
            following = episode[number + 1][0] if number + 1 < len(episode) else None
            advantages.append(reward + value(following) - value(history))
    return advantages


@pytest.mark.parametrize(("name", "oracle"), [("vineppo", vineppo_oracle), ("carl", carl_oracle)])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_recursion(name: str, oracle, seed: int) -> None:
    groups = random_groups(seed)
    advantage, _ = estimate(name, make_steps(*groups, penalty=0.25))
    want = [x for episodes in groups for x in oracle(list_rows(episodes, 0.25))]
    np.testing.assert_allclose(advantage, want, rtol=1e-4, atol=1e-4)
    assert np.any(want)


@pytest.mark.parametrize("name", ["vineppo", "carl"])
def test_equal_returns_teach_nothing(name: str) -> None:
    # The sum of seven equal returns is not exactly seven times one.
    episodes = [("", "abab", [0.1, 0.3, 0.1, 0.2])] * 7 + [("ab", "ab", [0.1, 0.2])] * 7
    advantage, _ = estimate(name, make_steps(episodes))
    assert not np.any(advantage)


def test_histories_are_told_apart() -> None:
    def past_of(actions: list[str]) -> np.ndarray:
        turns = [make_turn(action=action) for action in [*actions, "end"]]
        steps = finished_steps([Trajectory(TASK, 0, 0, turns)])
        return step_columns(steps, needs=("past",)).past[len(actions)]

    histories = (
        ["a", "bc"],
        ["ab", "c"],
        ["abc"],
        ["a", "b", "c"],
        ["3 abc"],
        ["1 a", "2 bc"],
        ["a bc"],
    )
    assert len({tuple(past_of(actions).tolist()) for actions in histories}) == len(histories)


def test_steps_that_are_not_learned_are_no_samples() -> None:
    steps = make_steps([("", "ab", [0.0, 1.0]), ("a", "c", [0.0])])
    learned = np.array([False, True, False])
    values = np.arange(3.0)
    credit = StepCredit(values, values, values, np.zeros(3, np.int64), learned=learned)
    assert credit.learned_rows == [1]
    weights = episode_weights(steps, credit.learned_rows, 12)
    # One token of the first episode is in the loss.
    assert weights[1] == 12.0
    samples = training_samples(step_samples(steps), credit, weights, {"teacher": values})
    assert [(s.advantage, s.weight, s.fields["teacher"]) for s in samples] == [(1.0, 12.0, 1.0)]
    # Of tokens, with padding behind the only one.
    credit = replace(credit, tokens=np.array([[5.0, 0.0], [6.0, 0.0], [7.0, 0.0]]))
    (sample,) = training_samples(step_samples(steps), credit, weights, {})
    assert sample.advantage.tolist() == [6.0]


def test_wrappers_take_neither() -> None:
    for name in ("vineppo", "carl"):
        with pytest.raises(InputError, match=rf"base='{name}': leaves steps out of the loss"):
            find_algorithm("salt", {"base": name})
