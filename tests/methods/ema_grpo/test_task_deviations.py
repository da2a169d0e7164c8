"""The moving deviation of task types: numbers by hand, hosts, and checkpoints."""

import json
import math

import numpy as np
import pytest

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.methods.ema_grpo.task_deviations import TaskDeviations, _episode_rows
from gigpo_jax.trajectory import Step, Turn
from tests.turns import make_step, make_turn

EMPTY = np.zeros(0)


def reward_step(
    trajectory: int, reward: float, task_type: str = "put", penalty: float = 0.0
) -> Step:
    turn = Turn(EMPTY, EMPTY, EMPTY, "", "", "", True, None, "", "", reward, penalty, "stop", 0)
    return make_step(trajectory, 0, turn, task=Task("task", task_type, "train"))


def scored(steps: list[Step]) -> ScoredSteps:
    return ScoredSteps(steps, (None, None), None)


def deviations(signal: TaskDeviations, steps: list[Step]) -> list[float]:
    return signal.compute_columns(scored(steps))["task_deviation"].tolist()


def learn(signal: TaskDeviations, steps: list[Step]) -> list[float]:
    """As in training: the column of an iteration, then its state."""
    column = deviations(signal, steps)
    signal.learn_steps(scored(steps))
    return column


def test_deviations_by_hand() -> None:
    signal = TaskDeviations(0.9)
    # Two steps of one episode count as one return, 10; the penalty makes the other one -2.
    steps = [
        reward_step(0, 4.0),
        reward_step(0, 6.0),
        reward_step(1, -1.0, penalty=1.0),
        reward_step(2, 3.0, "look"),
    ]
    # Moments of put: 4 and 52, variance 36. Look has one return: the least deviation.
    assert learn(signal, steps) == pytest.approx([6.0, 6.0, 6.0, 1e-3])
    # Reading twice changes nothing.
    lost = [reward_step(0, 0.0), reward_step(1, 0.0)]
    # 0.9 x 4 and 0.9 x 52: 46.8 - 12.96.
    expected = math.sqrt(46.8 - 3.6**2)
    assert deviations(signal, lost) == pytest.approx([expected] * 2)
    assert learn(signal, lost) == pytest.approx([expected] * 2)
    # Look was absent and keeps its moments: 3 and 9, then 0.9 x 3 + 0.1 x 13 and 0.9 x 9 + 16.9.
    assert learn(signal, [reward_step(0, 13.0, "look")]) == pytest.approx([math.sqrt(25.0 - 16.0)])


def test_a_restored_signal_and_two_hosts_have_equal_bits() -> None:
    rng = np.random.default_rng(0)

    def draw(first: int) -> list[Step]:
        return [
            reward_step(first + number, float(rng.normal()), rng.choice(["put", "look", "heat"]))
            for number in range(20)
        ]

    iterations = [(draw(0), draw(20)) for _ in range(4)]
    whole = TaskDeviations(0.99)
    columns = [learn(whole, first + second) for first, second in iterations]
    half = TaskDeviations(0.99)
    for first, second in iterations[:2]:
        learn(half, first + second)
    resumed = TaskDeviations(0.99)
    resumed.restore({"record": json.loads(json.dumps(half.checkpoint_record()))})
    assert [learn(resumed, first + second) for first, second in iterations[2:]] == columns[2:]
    # A host sees its own steps; the join appends the rows of the other one.
    first, second = iterations[0]
    other_rows = iter(_episode_rows(second))
    host = TaskDeviations(0.99, join=lambda rows: np.concatenate([rows, next(other_rows)]))
    assert deviations(host, first) == columns[0][: len(first)]


def test_types_of_two_environments_are_two_types() -> None:
    steps = []
    for environment, reward in (("house", 0.0), ("house", 6.0), ("shop", 1.0), ("shop", 2.0)):
        turn = make_turn(reward=reward)
        task = Task("task", "put", "train", environment=environment)
        steps.append(make_step(len(steps), 0, turn, task=task))
    assert deviations(TaskDeviations(0.9), steps) == pytest.approx([3.0, 3.0, 0.5, 0.5])
