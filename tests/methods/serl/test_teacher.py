"""The teacher of SERL: what it reads, when it is renewed, and that it is resumed exactly."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import resolve
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.hindsight import CLOSING, hindsight_prompt
from gigpo_jax.methods.serl.hindsight import TITLES
from gigpo_jax.methods.serl.teacher import HindsightTeacher
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.trajectory import Step, StepCredit, finished_steps
from tests.learner.test_learner_updates import (
    SHAPE,
    find_signal,
    learn_steps,
    make_config,
    make_trajectories,
    read_actions,
    start,
)

NO_CREDIT = StepCredit(*[np.zeros(0)] * 4)
WORDS = "look at the lamp you see a red door"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_tokenizer([f"{WORDS} {TITLES['feedback']} {CLOSING}"])


def steps_of(tokenizer: Tokenizer) -> list[Step]:
    """Each response is one token of thought and an action; the feedback differs between steps."""
    tail = tokenizer.encode("<action></action>")
    steps = []
    for number, step in enumerate(finished_steps(make_trajectories())):
        response = np.array([number % 5, *tail], np.int32)
        turn = dataclasses.replace(step.turn, response_tokens=response, prompt="look at the lamp")
        turn = dataclasses.replace(
            turn, logprobs=np.zeros(len(response), np.float32), feedback=WORDS[: 8 + number]
        )
        steps.append(dataclasses.replace(step, turn=turn))
    return steps


def learner_of(tokenizer: Tokenizer, name: str = "serl", **settings: float) -> Learner:
    config = make_config()
    config.rl.algorithm, config.rl.kl_coef, config.rl.settings = name, 0.0, ConfigDict(settings)
    config.batch.row_length, config.sampling.max_prompt_tokens = 128, 100
    config.train.epochs, config.train.iterations = 1, 8  # the learning rate stays above 0
    shape = dataclasses.replace(SHAPE, vocab_size=tokenizer.vocab_size)
    rng = np.random.default_rng(0)
    params = start() | {
        "embed": rng.normal(size=(tokenizer.vocab_size, SHAPE.hidden_size)).astype(np.float32)
    }
    params = jax.tree.map(jax.numpy.asarray, params)
    learner = Learner(
        resolve(config), Policy(shape, params, tokenizer), make_mesh(data=1, fsdp=1, tensor=1)
    )
    read_actions(learner, tokenizer)
    return learner


def learn(learner: Learner, steps: list[Step], iterations: range) -> list[dict[str, float]]:
    return [learn_steps(learner, steps, iteration)[0] for iteration in iterations]


def equal_trees(first: object, second: object) -> bool:
    return all(
        np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (first, second)), strict=True)
    )


def test_it_reads_the_prompt_and_what_came_of_the_action(tokenizer: Tokenizer) -> None:
    turn = steps_of(tokenizer)[0].turn
    whole = tokenizer.encode_chat(f"look at the lamp\n\n{WORDS}\n\n{CLOSING}")
    assert hindsight_prompt(tokenizer, turn, WORDS, 100).tolist() == whole
    less = tokenizer.decode(hindsight_prompt(tokenizer, turn, WORDS, len(whole) - 2).tolist())
    assert "look at the lamp" in less  # what came of the action is shortened first
    assert CLOSING.split()[-1] in less
    assert "red door" not in less
    assert len(hindsight_prompt(tokenizer, turn, WORDS, 3)) == 3


def test_it_is_renewed_when_due_and_scores_until_hindsight_ends(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HindsightTeacher, "refresh", 2)
    steps = steps_of(tokenizer)
    learner = learner_of(tokenizer, iterations=3)
    teacher = find_signal(learner, HindsightTeacher)
    read = [
        Sample(
            hindsight_prompt(tokenizer, s.turn, f"{TITLES['feedback']}\n{s.turn.feedback}", 100),
            s.turn.response_tokens,
            s.turn.logprobs,
        )
        for s in steps
    ]
    of_start = learner._score(learner.state.params, None, read).logprob
    for iteration in range(4):
        credited = CreditedSteps(learner.score_steps(steps), {}, NO_CREDIT, iteration)
        scores = teacher.compute_fields(credited)["teacher"]
        if iteration == 3:
            assert scores == [0.0] * len(steps)
            break
        now = learner._score(learner.state.params, None, read).logprob
        for score, old, new in zip(scores, of_start, now, strict=True):
            np.testing.assert_array_equal(score, new if iteration == 2 else old)
        assert all(np.array_equal(x, y) for x, y in zip(of_start, now, strict=True)) == (
            iteration == 0
        )
        learn(learner, steps, range(iteration, iteration + 1))


@pytest.mark.slow
def test_stopped_and_resumed_equals_uninterrupted(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HindsightTeacher, "refresh", 2)
    steps = steps_of(tokenizer)
    whole = learner_of(tokenizer)  # the copy is of the policy before iteration 2
    learn(whole, steps, range(3))
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save_parts(3, whole.checkpoint_parts(), {})
    expected = learn(whole, steps, range(3, 4))
    resumed = learner_of(tokenizer)
    resumed.restore(checkpoints.restore_parts(resumed.checkpoint_parts()))
    checkpoints.close()
    assert not equal_trees(
        resumed.checkpoint_parts()["params"], resumed.checkpoint_parts()["teacher"]
    )
    assert learn(resumed, steps, range(3, 4)) == expected
    assert equal_trees(resumed.checkpoint_parts(), whole.checkpoint_parts())


@pytest.mark.slow
def test_a_step_without_a_context_learns_as_its_base_does(tokenizer: Tokenizer) -> None:
    steps = steps_of(tokenizer)
    mute = [
        dataclasses.replace(step, turn=dataclasses.replace(step.turn, feedback=" "))
        for step in steps
    ]
    plain = learner_of(tokenizer, "grpo")
    learner = learner_of(tokenizer)
    other = learner_of(tokenizer)
    learn(plain, mute, range(2))  # from the second iteration on copy and policy differ
    learn(learner, mute, range(2))
    learn(other, steps, range(2))
    changes = [
        max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), *trees)))
        for trees in (
            (learner.state.params, plain.state.params),
            (other.state.params, plain.state.params),
        )
    ]
    assert 10 * changes[0] < changes[1], changes


@pytest.mark.slow
@pytest.mark.parametrize("context", ["future_trajectory", "anchor_next_observation"])
def test_other_contexts_train(tokenizer: Tokenizer, context: str) -> None:
    learner = learner_of(tokenizer, context=context)
    for metrics in learn(learner, steps_of(tokenizer), range(2)):
        assert np.isfinite(metrics["policy/loss"])
