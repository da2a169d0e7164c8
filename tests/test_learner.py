"""One iteration of learning: how many updates, against which log-probabilities, and what stops it."""

import dataclasses

import jax
import numpy as np
import pytest

from gigpo_jax import partition
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner import Learner, NotFinite
from gigpo_jax.metrics import Timers
from gigpo_jax.policy import fresh_policy
from gigpo_jax.trajectory import Trajectory, Turn
from tests.configs import example


@pytest.fixture(scope="module")
def learner() -> Learner:
    config = example.get_config()
    config.rl.behaviour, config.optim.lr = "recompute", 1e-6
    config.train.minibatch, config.train.epochs = 5, 2
    mesh = partition.make_mesh(1, 1, 1, devices=jax.devices()[:1])
    return Learner(config, fresh_policy(config, mesh, ["a few words"]), mesh)


def turn(rng: np.random.Generator, reward: float) -> Turn:
    return Turn(
        prompt_tokens=rng.integers(0, 5, 9).astype(np.int32),
        reply_tokens=rng.integers(0, 5, 4).astype(np.int32),
        logprobs=np.full(4, -9.0, np.float32),  # far from what the learner finds
        prompt="",
        reply="",
        action="",
        valid=True,
        admissible=None,
        observation="",
        anchor=str(rng.integers(0, 3)),
        reward=reward,
        penalty=0.0,
        finish_reason="stop",
        version=0,
    )


def trajectories() -> list[Trajectory]:
    """Two groups of two episodes of three steps, of which one step was won; and an aborted one."""
    rng, task = np.random.default_rng(0), Task("t", "", "train")
    played = [
        Trajectory(task, group, member, [turn(rng, 10.0 * (k == 2 and member == 1)) for k in range(3)])
        for group in range(2)
        for member in range(2)
    ]
    return [*played, Trajectory(task, 1, 2, [turn(rng, 1.0)], aborted=True)]


def learn(learner: Learner) -> tuple[dict[str, float], list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    metrics, _, advantages = learner.learn(trajectories(), 0, Timers(), lambda *done_of_all: seen.append(done_of_all))
    assert np.count_nonzero(advantages) == 12
    return metrics, seen


def test_one_optimizer_step_a_minibatch_against_the_learners_own_log_probabilities(learner: Learner) -> None:
    metrics, seen = learn(learner)
    # 12 steps in minibatches of at most 5 are three, in two epochs six; aborted episodes teach nothing.
    assert int(learner.state.step) == 6
    assert seen == [(i, 6) for i in range(1, 7)]
    assert metrics["batch/steps"] == 24
    assert metrics["policy/ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["policy/behaviour_mismatch"] > 1.0
    assert 0 <= metrics["policy/kl"] < 1e-5
    assert metrics["policy/grad_norm"] > 0
    assert learner.compile_count == 2
    learn(learner)
    assert learner.compile_count == 2


def test_three_bad_updates_in_a_row_stop_it_with_the_last_good_state(learner: Learner) -> None:
    broken = learner.state.params | {"embed": learner.state.params["embed"].at[:, 0].set(np.inf)}
    learner.state = dataclasses.replace(learner.state, params=broken)
    before, step = jax.tree.map(np.array, broken), int(learner.state.step)
    with pytest.raises(NotFinite, match=r"three times in a row; lower config\.optim\.lr"):
        learn(learner)
    assert (int(learner.state.step), int(learner.state.skipped_in_row)) == (step, 3)
    for x, y in zip(*map(jax.tree.leaves, (before, learner.state.params)), strict=True):
        np.testing.assert_array_equal(x, y)
