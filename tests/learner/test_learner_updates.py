"""Whole iterations: log-probabilities, the order of updates, and the temperature."""

import dataclasses
import gc
import itertools
import json
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner import learner as learner_module
from gigpo_jax.learner.finite import NotFinite
from gigpo_jax.learner.kl_penalty import subtract_penalties
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.objective import make_config_optimizer
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import step_samples, training_samples
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.action_spans import ActionSpans
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.spans import action_masks
from gigpo_jax.models import decoder
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl import update
from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.run.loggers.metrics import Timers
from gigpo_jax.trajectory import Step, StepCredit, Trajectory, finished_steps
from tests.turns import make_turn

SHAPE = decoder.DecoderConfig(31, 16, 32, 1, 2, 1, 8)
STEPS = 3


def make_config() -> ConfigDict:
    config = default_config()
    config.model.compute_dtype, config.model.remat = "float32", "none"
    # The plain update below packs into the same rows.
    config.batch.fit_rows = False
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
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    return Learner(resolve(config), Policy(SHAPE, start(), None), mesh)  # type: ignore[arg-type]


def start() -> decoder.Params:
    return jax.tree.map(
        lambda x: 4.0 * x if x.ndim > 1 else x, decoder.init_params(SHAPE, jax.random.key(0))
    )


def no_progress(done: int, total: int) -> None:
    del done, total


def learn_steps(
    learner: Learner, steps: Sequence[Step], iteration: int
) -> tuple[dict[str, float], StepCredit]:
    return learner.learn(learner.score_steps(steps), iteration, Timers(), no_progress)


def find_signal(learner: Learner, kind: type[Signal]) -> Any:
    """The signal of that class, or None."""
    return next((signal for signal in learner.signals if isinstance(signal, kind)), None)


def read_actions(learner: Learner, tokenizer: Tokenizer) -> None:
    """Lets the learner look for <action> tags, whatever the tags of the config's environment."""
    spans = find_signal(learner, ActionSpans)
    if spans is not None:
        spans.mask = action_masks(tokenizer, ("action",))


@pytest.mark.slow
def test_older_policies_are_copies_that_no_update_takes_over() -> None:
    """One copy for each update of staleness; the engine may have the arrays of the newest one."""
    steps = finished_steps(make_trajectories())
    growth = {}
    for updates in (0, 2):
        config = make_config()
        config.train.max_staleness, config.train.iterations = updates, 8
        gc.collect()
        start_bytes = sum(array.nbytes for array in jax.live_arrays())
        learner = make_learner(config)
        for iteration in range(3):
            engine_leaves = jax.tree.leaves(learner.params)
            learn_steps(learner, steps, iteration)
        older_leaves = [jax.tree.leaves(trained) for _, trained in learner.older]
        assert [version for version, _ in learner.older] == [1, 2][:updates]
        if updates:
            assert all(map(operator.is_, engine_leaves, older_leaves[-1]))
            for newer, older in itertools.pairwise(
                [jax.tree.leaves(learner.params), *reversed(older_leaves)]
            ):
                assert not any(map(np.array_equal, newer, older))
        del engine_leaves, older_leaves
        gc.collect()
        growth[updates] = sum(array.nbytes for array in jax.live_arrays()) - start_bytes
        del learner
    assert growth[2] == growth[0] + 2 * 4 * decoder.param_count(SHAPE)


def test_minibatches_have_the_task_groups_of_the_steps_in_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config()
    config.train.minibatch_by, config.train.minibatch, config.train.epochs = "group", 5, 1
    trajectories = make_trajectories()
    for trajectory in trajectories:
        trajectory.group = trajectory.member % 2
    steps = finished_steps(trajectories)
    rows = np.arange(12.0)
    # Five steps of each group.
    learned = ~np.isin(rows, [0, 3])
    credit = StepCredit(rows, rows, rows, np.zeros(12, np.int64), learned=learned)
    monkeypatch.setattr(learner_module, "step_credit", lambda *_, **__: ({}, credit))
    minibatches = []

    def update(batches: Sequence[StepBatch], *_: Any) -> dict[str, float]:
        minibatches.extend(set(batch.advantage[batch.weight > 0].tolist()) for batch in batches)
        return {}

    learner = make_learner(config)
    monkeypatch.setattr(learner, "_update", update)
    learn_steps(learner, steps, 0)
    assert sorted(minibatches, key=min) == [{1, 2, 6, 7, 8}, {4, 5, 9, 10, 11}]


def test_the_oldest_policy_is_dropped_and_the_newest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    config.train.max_staleness, config.train.iterations = 2, 8
    steps = finished_steps(make_trajectories())
    rows = np.arange(12.0)
    credit = StepCredit(rows, rows, rows, np.zeros(12, np.int64))
    monkeypatch.setattr(learner_module, "step_credit", lambda *_, **__: ({}, credit))
    learner = make_learner(config)

    def update(*_: Any) -> dict[str, float]:
        params = jax.tree.map(lambda x: x + 1, learner.state.params)
        learner.state = dataclasses.replace(learner.state, params=params)
        return {}

    def older_policies() -> list[tuple[int, float]]:
        """Versions, and the updates that the parameters have seen."""
        return [
            (version, round(float(np.mean(trained["embed"] - start()["embed"])), 3))
            for version, trained in learner.older
        ]

    monkeypatch.setattr(learner, "_update", update)
    history = [older_policies()]
    for iteration in range(3):
        learn_steps(learner, steps, iteration)
        history.append(older_policies())
    assert history == [[(0, 0), (0, 0)], [(0, 0), (0, 0)], [(0, 0), (1, 1)], [(1, 1), (2, 2)]]
    record = json.loads(json.dumps(learner.checkpoint_record()))
    checkpoint = learner.checkpoint_parts() | {"record": record}
    learner.older = []
    learner.restore(checkpoint)
    assert older_policies() == history[-1]


def test_two_iterations_of_two_epochs_by_hand() -> None:
    config = make_config()
    trajectories = make_trajectories()
    for trajectory in trajectories:
        trajectory.group = trajectory.member // 2
    learner = make_learner(config)
    iterations = [
        learn_steps(learner, finished_steps(trajectories), iteration) for iteration in (0, 1)
    ]

    # Equal states of two tasks are different states.
    first = iterations[0][1].anchor_group
    assert len(set(first[:STEPS])) == STEPS
    assert first.tolist() == [*first[:STEPS]] * 2 + [*first[-STEPS:]] * 2
    assert not {*first[:STEPS]} & {*first[-STEPS:]}

    forward = forward_function(config, SHAPE, make_mesh(data=1, fsdp=1, tensor=1))
    optimizer = make_config_optimizer(config, config.train.iterations)
    settings = {"chunk": config.batch.logprob_chunk, "temperature": 0.7}
    step = update.make_update(forward, optimizer, LossSettings(0.2, 0.2, kl_coef=0.5), **settings)
    logprobs = make_logprobs(forward, **settings)
    state = init_state(start(), optimizer)
    first_mismatches = []
    for iteration, (_, credit) in enumerate(iterations):
        batches = []
        for epoch in (0, 1):
            order = np.random.default_rng((config.seed, iteration, epoch))
            steps = finished_steps(trajectories)
            samples = training_samples(step_samples(steps), credit, [1.0] * len(steps), {})
            batches += make_minibatches(samples, steps=4, row_length=32, rows=2, rng=order)
        assert len(batches) == 6
        batches = [jax.tree.map(jnp.asarray, batch) for batch in batches]
        # Of the policy that played, for all minibatches.
        old_logprobs = [logprobs(state.params, batch) for batch in batches]
        for number, (batch, proximal) in enumerate(zip(batches, old_logprobs, strict=True)):
            batch = dataclasses.replace(
                batch, reference=logprobs(start(), batch), proximal=proximal
            )
            state, metrics = step(state, batch, None, np.int32(iteration))
            if number == 0:
                first_mismatches.append(float(metrics["policy/behaviour_mismatch"]))
    # Two programs round differently, and Adam divides even the smallest gradients by their size.
    for x, y in zip(*map(jax.tree.leaves, (learner.state.params, state.params)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=5e-4)
    assert int(learner.state.step) == 12
    # The rate is the iteration's, however many updates it has, and would be 0 after the last.
    assert [metrics["policy/lr"] for metrics, _ in iterations] == pytest.approx([1e-2, 0.5e-2])
    assert [metrics["policy/behaviour_mismatch"] for metrics, _ in iterations] == pytest.approx(
        first_mismatches, rel=1e-4
    )


def test_kl_in_the_reward_is_a_penalty_of_each_step() -> None:
    config = make_config()
    plain = make_config()
    steps = finished_steps(make_trajectories())
    config.rl.kl_in, plain.rl.kl_coef = "reward", 0.0
    learner = make_learner(config)
    plain_learner = make_learner(plain)
    start_learner = make_learner(plain)
    kl_metrics = []
    for iteration in (0, 1):
        old, reference = (
            policy.score_steps(steps).token_logprobs.logprob
            for policy in (plain_learner, start_learner)
        )
        penalties = [0.5 * float((a - b).sum()) for a, b in zip(old, reference, strict=True)]
        metrics, credit = learn_steps(learner, steps, iteration)
        _, by_hand = learn_steps(plain_learner, subtract_penalties(steps, penalties), iteration)
        np.testing.assert_allclose(credit.total, by_hand.total, rtol=1e-4, atol=1e-5)
        assert metrics["credit/kl_penalty"] == pytest.approx(np.mean(penalties), rel=1e-4, abs=1e-6)
        assert metrics["policy/kl"] == 0
        kl_metrics.append(metrics["credit/kl_penalty"])
    assert (
        abs(kl_metrics[0]) < 1e-6 < 1e-2 < abs(kl_metrics[1])
    )  # at first the policy is its reference
    for x, y in zip(
        *map(jax.tree.leaves, (learner.state.params, plain_learner.state.params)), strict=True
    ):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-5)


def test_three_bad_updates_in_a_row_end_an_iteration_and_change_nothing() -> None:
    config = make_config()
    config.rl.old_logprobs, config.rl.kl_coef = "engine", 0.0
    learner = make_learner(config)
    progress = []
    with pytest.raises(NotFinite, match="three times in a row"):
        learner.learn(
            learner.score_steps(finished_steps(make_trajectories(float("nan")))),
            0,
            Timers(),
            lambda *counts: progress.append(counts),
        )
    # The third was found while the fourth ran: two are done then, of six of 24 tokens each.
    assert progress == [(0, 144), (24, 144), (48, 144)]
    assert int(learner.state.step) == 0
    for x, y in zip(*map(jax.tree.leaves, (learner.state.params, start())), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.slow
def test_thoughts_weigh_less_and_clips_are_scaled_in_a_whole_iteration() -> None:
    """Responses are one token of thought and an action: weight 1 of thoughts changes nothing."""
    tokenizer = word_tokenizer([])
    response = np.array([20, *tokenizer.encode("<action></action>")], np.int32)
    trajectories = make_trajectories()
    for trajectory in trajectories:
        trajectory.task = dataclasses.replace(trajectory.task, answer="a b")
        trajectory.turns = [
            dataclasses.replace(turn, response_tokens=response) for turn in trajectory.turns
        ]
    steps = finished_steps(trajectories)

    def learn_with(name: str, **settings: float) -> tuple[Learner, StepCredit]:
        config = make_config()
        config.env.name, config.rl.algorithm = "search", name
        config.rl.settings = ConfigDict(settings)
        config.batch.row_length, config.sampling.max_prompt_tokens = (
            256,
            240,
        )  # room for the prompt before an answer
        mesh = make_mesh(data=1, fsdp=1, tensor=1)
        learner = Learner(resolve(config), Policy(SHAPE, start(), tokenizer), mesh)
        read_actions(learner, tokenizer)
        return learner, learn_steps(learner, steps, 0)[1]

    plain, full_weight, low_weight = (
        np.asarray(learn_with(name, **settings)[0].state.params["embed"])
        for name, settings in (
            ("grpo", {}),
            ("response_weight", {"thought": 1.0}),
            ("response_weight", {}),
        )
    )
    np.testing.assert_array_equal(full_weight, plain)
    assert np.abs(low_weight - plain).max() > 1e-5
    learner, credit = learn_with("a2tgpo")
    credited = CreditedSteps(learner.score_steps(steps), {}, credit, 0)
    assert [
        sample.fields["clip_scale"] for sample in learner._training_samples(credited)
    ] == credit.clip_scale.tolist()
    assert len({*credit.clip_scale.tolist()}) > 2
