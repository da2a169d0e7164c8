"""Which parameters give which log-probabilities, the order of learning, and the temperature, over whole iterations."""

import dataclasses
import gc
import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.batching import make_minibatches, step_samples
from gigpo_jax.columns.action_span import action_masks
from gigpo_jax.config import default_config, resolve
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner import Learner, make_optimizer
from gigpo_jax.models import qwen2
from gigpo_jax.models.tokenizer import word_tokenizer
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl import update
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.run import partition
from gigpo_jax.run.finite import NotFinite
from gigpo_jax.run.metrics import Timers
from gigpo_jax.trajectory import StepCredit, Trajectory, finished_steps, with_less_reward
from tests.turns import make_turn

SHAPE = qwen2.Qwen2Config(31, 16, 32, 1, 2, 1, 8)
STEPS = 3


def make_config() -> ConfigDict:
    config = default_config()
    config.model.compute_dtype, config.model.remat = "float32", "none"
    config.batch.rows, config.batch.row_length = 2, 32
    config.sampling.max_prompt_tokens = config.sampling.max_response_tokens = 8
    config.sampling.temperature = 0.7
    config.train.minibatch, config.train.epochs = 4, 2
    config.rl.old_logprobs, config.rl.kl_coef = "recompute", 0.5
    config.optim.lr, config.optim.schedule, config.train.iterations = 1e-2, "linear", 2
    config.env.max_steps, config.train.groups, config.train.group_size = STEPS, 1, 4
    return config


def make_trajectories(logprob: float = -3.0) -> list[Trajectory]:
    """Four episodes of one task, three steps each, two of them rewarded."""
    rng = np.random.default_rng(0)
    out = []
    for member in range(4):
        turns = []
        for step in range(STEPS):
            prompt, response = (rng.integers(0, 31, n).astype(np.int32) for n in (4, 3))
            turns.append(
                make_turn(
                    prompt_tokens=prompt,
                    response_tokens=response,
                    logprobs=np.full(3, logprob, np.float32),
                    anchor=f"state {step}",
                    reward=float(member % 2 and step == STEPS - 1),
                )
            )
        out.append(Trajectory(Task("task", "train", ""), 0, member, turns))
    return out


def make_learner(config: ConfigDict) -> Learner:
    mesh = partition.make_mesh(data=1, fsdp=1, tensor=1)
    return Learner(resolve(config), Policy(SHAPE, start(), None), mesh)  # type: ignore[arg-type]


def start() -> qwen2.Params:
    return jax.tree.map(lambda x: 4.0 * x if x.ndim > 1 else x, qwen2.init(SHAPE, jax.random.key(0)))


def no_progress(done: int, total: int) -> None:
    del done, total


def test_older_policies_are_copies_that_no_update_takes_over() -> None:
    """One for each update that rollouts are behind; the engine may have the arrays of the last one."""
    steps, grown = finished_steps(make_trajectories()), {}
    for updates in (0, 2):
        config = make_config()
        config.train.max_staleness, config.train.iterations = updates, 8
        gc.collect()
        before = sum(array.nbytes for array in jax.live_arrays())
        learner = make_learner(config)
        for iteration in range(3):
            given = jax.tree.leaves(learner.params)
            learner.learn(steps, iteration, Timers(), no_progress)
        kept = [jax.tree.leaves(trained) for _, trained in learner.older]
        assert [version for version, _ in learner.older] == [1, 2][:updates]
        if updates:
            assert all(map(operator.is_, given, kept[-1]))
            for newer, older in itertools.pairwise([jax.tree.leaves(learner.params), *reversed(kept)]):
                assert not any(map(np.array_equal, newer, older))
        del given, kept
        gc.collect()
        grown[updates] = sum(array.nbytes for array in jax.live_arrays()) - before
        del learner
    assert grown[2] == grown[0] + 2 * 4 * qwen2.param_count(SHAPE)


def test_two_iterations_of_two_epochs_by_hand() -> None:
    config, trajectories = make_config(), make_trajectories()
    learner = make_learner(config)
    got = [learner.learn(finished_steps(trajectories), iteration, Timers(), no_progress) for iteration in (0, 1)]

    forward = forward_function(config, SHAPE, partition.make_mesh(data=1, fsdp=1, tensor=1))
    optimizer = make_optimizer(config, config.train.iterations)
    settings = {"chunk": config.batch.logprob_chunk, "temperature": 0.7}
    step = update.make_update(forward, optimizer, LossSettings(0.2, 0.2, kl_coef=0.5), **settings)
    logprobs = update.make_logprobs(forward, **settings)
    state = update.init_state(start(), optimizer)
    first = []
    for iteration, (_, credit) in enumerate(got):
        batches = []
        for epoch in (0, 1):
            order = np.random.default_rng((config.seed, iteration, epoch))
            samples = step_samples(finished_steps(trajectories), credit.total)
            batches += make_minibatches(samples, steps=4, row_length=32, rows=2, rng=order)
        assert len(batches) == 6
        batches = [jax.tree.map(jnp.asarray, batch) for batch in batches]
        before = [logprobs(state.params, batch) for batch in batches]  # of the policy that played, for all of them
        for number, (batch, proximal) in enumerate(zip(batches, before, strict=True)):
            batch = dataclasses.replace(batch, reference=logprobs(start(), batch), proximal=proximal)
            state, metrics = step(state, batch, None, np.int32(iteration))
            if number == 0:
                first.append(float(metrics["policy/behaviour_mismatch"]))
    for x, y in zip(*map(jax.tree.leaves, (learner.state.params, state.params)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-5)
    assert int(learner.state.step) == 12
    # The rate is that of the iteration, however many updates it has, and would be 0 after the last.
    assert [metrics["policy/lr"] for metrics, _ in got] == pytest.approx([1e-2, 0.5e-2])
    assert [metrics["policy/behaviour_mismatch"] for metrics, _ in got] == pytest.approx(first, rel=1e-4)


def test_kl_in_the_reward_is_a_penalty_of_each_step() -> None:
    config, plain, steps = make_config(), make_config(), finished_steps(make_trajectories())
    config.rl.kl_in, plain.rl.kl_coef = "reward", 0.0
    learner, other, start_policy = make_learner(config), make_learner(plain), make_learner(plain)
    found = []
    for iteration in (0, 1):
        now, reference = (policy.token_logprobs(steps).logprob for policy in (other, start_policy))
        penalties = [0.5 * float((a - b).sum()) for a, b in zip(now, reference, strict=True)]
        metrics, credit = learner.learn(steps, iteration, Timers(), no_progress)
        _, by_hand = other.learn(with_less_reward(steps, penalties), iteration, Timers(), no_progress)
        np.testing.assert_allclose(credit.total, by_hand.total, rtol=1e-4, atol=1e-5)
        assert metrics["credit/kl_penalty"] == pytest.approx(np.mean(penalties), rel=1e-4, abs=1e-6)
        assert metrics["policy/kl"] == 0
        found.append(metrics["credit/kl_penalty"])
    assert abs(found[0]) < 1e-6 < 1e-2 < abs(found[1])  # at first the policy is its reference
    for x, y in zip(*map(jax.tree.leaves, (learner.state.params, other.state.params)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-5)


def test_three_bad_updates_in_a_row_end_an_iteration_and_change_nothing() -> None:
    config = make_config()
    config.rl.old_logprobs, config.rl.kl_coef = "engine", 0.0
    learner, seen = make_learner(config), []
    with pytest.raises(NotFinite, match="three times in a row"):
        learner.learn(finished_steps(make_trajectories(float("nan"))), 0, Timers(), lambda *counts: seen.append(counts))
    assert seen == [(1, 6), (2, 6), (3, 6)]  # the third was found while the fourth ran
    assert int(learner.state.step) == 0
    for x, y in zip(*map(jax.tree.leaves, (learner.state.params, start())), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_thoughts_weigh_less_and_clips_are_scaled_in_a_whole_iteration() -> None:
    """Answers "<action></action>" behind one token of thought: weight 1 changes nothing, a lower one does."""
    tokenizer = word_tokenizer([])
    response = np.array([20, *tokenizer.encode("<action></action>")], np.int32)
    trajectories = make_trajectories()
    for trajectory in trajectories:
        trajectory.task = dataclasses.replace(trajectory.task, answer="a b")
        trajectory.turns = [dataclasses.replace(turn, response_tokens=response) for turn in trajectory.turns]
    steps = finished_steps(trajectories)

    def learnt(name: str, **settings: float) -> tuple[Learner, StepCredit]:
        config = make_config()
        config.env.name, config.rl.algorithm = "search", name
        config.rl.settings = ConfigDict(settings)
        config.batch.row_length, config.sampling.max_prompt_tokens = 256, 240  # room for the prompt before an answer
        mesh = partition.make_mesh(data=1, fsdp=1, tensor=1)
        learner = Learner(resolve(config), Policy(SHAPE, start(), tokenizer), mesh)
        learner._action_mask = action_masks(tokenizer, ("action",))
        return learner, learner.learn(steps, 0, Timers(), no_progress)[1]

    plain, same, less = (
        np.asarray(learnt(name, **settings)[0].state.params["embed"])
        for name, settings in (("grpo", {}), ("response_weight", {"thought": 1.0}), ("response_weight", {}))
    )
    np.testing.assert_array_equal(same, plain)
    assert np.abs(less - plain).max() > 1e-5
    learner, credit = learnt("a2tgpo")
    assert [sample.clip_scale for sample in learner._samples(steps, credit)] == credit.clip_scale.tolist()
    assert len({*credit.clip_scale.tolist()}) > 2
