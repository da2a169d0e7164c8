"""A copy of the policy that learns which episodes were won (OPRL)."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import resolve
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.learner import Learner
from gigpo_jax.methods.oprl import implicit_rewards
from gigpo_jax.methods.oprl.implicit_rewards import ImplicitRewards
from gigpo_jax.policy import Policy
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.trajectory import Step, finished_steps
from tests.learner.test_learner_updates import (
    SHAPE,
    find_signal,
    learn_steps,
    make_config,
    make_trajectories,
    start,
)

MESH = make_mesh(data=1, fsdp=1, tensor=1)


@pytest.fixture(scope="module", autouse=True)
def large_beta() -> Iterator[None]:
    """Ten times the factor: the copy learns in few iterations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(implicit_rewards, "BETA", 0.5)
        yield


def oprl_config(**settings: float) -> ConfigDict:
    config = make_config()
    config.rl.algorithm, config.rl.kl_coef, config.train.epochs = "oprl", 0.0, 1
    config.rl.settings = ConfigDict({"copy_lr": 3e-3, **settings})
    config.train.iterations = 20
    # The policy stands still, so that the copy alone moves.
    config.optim.lr, config.optim.schedule = 1e-12, "constant"
    return resolve(config)


def make_learner(config: ConfigDict) -> Learner:
    return Learner(config, Policy(SHAPE, start(), None), MESH)  # type: ignore[arg-type]


def make_steps() -> list[Step]:
    """Two won and two lost episodes."""
    episodes = make_trajectories()
    for episode in episodes:
        episode.won = episode.member % 2 == 1
    return finished_steps(episodes)


def rewards(learner: Learner, steps: list[Step]) -> np.ndarray:
    signal = find_signal(learner, ImplicitRewards)
    return signal.compute_columns(learner.score_steps(steps))["implicit_reward"]


@pytest.fixture(scope="module")
def trained():
    """A learner after 15 iterations on the same episodes, with its metrics."""
    learner = make_learner(oprl_config())
    steps = make_steps()
    first = rewards(learner, steps)
    records = [learn_steps(learner, steps, iteration)[0] for iteration in range(15)]
    return learner, steps, first, records


@pytest.mark.slow
def test_the_copy_learns_to_tell_won_episodes(trained) -> None:
    learner, steps, first, records = trained
    # The copy is the policy at the start: no reward, and each pair costs log 2.
    assert not first.any()
    assert records[0]["preference/loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert records[0]["preference/accuracy"] == 0.0
    assert {record["preference/pairs"] for record in records} == {4.0}
    losses = [record["preference/loss"] for record in records]
    assert losses[-1] < 0.5 * losses[0]
    assert records[-1]["preference/accuracy"] == 1.0
    won = np.array([step.episode.won for step in steps])
    last = rewards(learner, steps)
    assert last[won].mean() > 0.1 > -0.1 > last[~won].mean()


def test_rewards_are_log_ratios_before_the_copys_own_step(trained) -> None:
    learner, steps, _, _ = trained
    scored = learner.score_steps(steps)
    signal = find_signal(learner, ImplicitRewards)
    own = scored.score(signal.params, None, scored.samples).logprob
    ratios = [x.sum() - y.sum() for x, y in zip(own, scored.token_logprobs.logprob, strict=True)]
    got = signal.compute_columns(scored)["implicit_reward"]
    np.testing.assert_allclose(got, 0.5 * np.array(ratios), atol=1e-5)
    # The advantages of an iteration have the rewards from before its step.
    _, credit = learn_steps(learner, steps, 15)
    z = (got - got.mean()) / (got.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(credit.step, z, atol=1e-4)
    assert not np.allclose(rewards(learner, steps), got)


def test_without_a_pair_nothing_is_learnt() -> None:
    learner = make_learner(oprl_config())
    signal = find_signal(learner, ImplicitRewards)
    before = jax.tree.map(np.array, signal.params)
    metrics, _ = learn_steps(learner, finished_steps(make_trajectories()), 0)  # nobody has won
    assert metrics["preference/pairs"] == 0
    assert "preference/loss" not in metrics
    for one, other in zip(*map(jax.tree.leaves, (before, signal.params)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_resumed_copy_goes_on_as_if_never_stopped(tmp_path) -> None:
    steps = make_steps()
    whole = make_learner(oprl_config())
    learn_steps(whole, steps, 0)
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save_parts(1, whole.checkpoint_parts(), {})
    resumed = make_learner(oprl_config())
    resumed.restore(checkpoints.restore_parts(resumed.checkpoint_parts()))
    checkpoints.close()
    policy = Policy(SHAPE, start(), None)  # type: ignore[arg-type]
    saved = ImplicitRewards.load(oprl_config(), policy, MESH, tmp_path)
    scored = resumed.score_steps(steps)
    got = saved.compute_columns(scored)["implicit_reward"]
    assert got.any()
    np.testing.assert_array_equal(got, rewards(resumed, steps))
    for learner in (whole, resumed):
        learn_steps(learner, steps, 1)
    np.testing.assert_array_equal(rewards(whole, steps), rewards(resumed, steps))
