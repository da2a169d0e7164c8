"""The teacher of SERL: what it reads, when it is renewed, and that it is resumed exactly."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.batching import Sample, step_samples
from gigpo_jax.columns.action_span import action_masks
from gigpo_jax.columns.hindsight import CLOSING, SECTION, hindsight_prompt
from gigpo_jax.config import resolve
from gigpo_jax.learner import Learner
from gigpo_jax.models.tokenizer import Tokenizer, word_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.run import partition
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.run.metrics import Timers
from gigpo_jax.trajectory import Step, finished_steps
from tests.test_learner_updates import SHAPE, make_config, make_trajectories, no_progress, start

WORDS = "look at the lamp you see a red door"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_tokenizer([f"{WORDS} {SECTION} {CLOSING}"])


def steps_of(tokenizer: Tokenizer) -> list[Step]:
    """Each response is one token of thought and an action; what came of it differs from step to step."""
    tail = tokenizer.encode("<action></action>")
    found = []
    for number, step in enumerate(finished_steps(make_trajectories())):
        response = np.array([number % 5, *tail], np.int32)
        turn = dataclasses.replace(step.turn, response_tokens=response, prompt="look at the lamp")
        turn = dataclasses.replace(turn, logprobs=np.zeros(len(response), np.float32), feedback=WORDS[: 8 + number])
        found.append(dataclasses.replace(step, turn=turn))
    return found


def learner_of(tokenizer: Tokenizer, name: str = "serl", **settings: float) -> Learner:
    config = make_config()
    config.rl.algorithm, config.rl.kl_coef, config.rl.settings = name, 0.0, ConfigDict(settings)
    config.batch.row_length, config.sampling.max_prompt_tokens = 128, 100
    config.train.epochs, config.train.iterations = 1, 8  # the learning rate stays above 0
    shape = dataclasses.replace(SHAPE, vocab_size=tokenizer.vocab_size)
    rng = np.random.default_rng(0)
    params = start() | {"embed": rng.normal(size=(tokenizer.vocab_size, SHAPE.hidden_size)).astype(np.float32)}
    params = jax.tree.map(jax.numpy.asarray, params)
    learner = Learner(resolve(config), Policy(shape, params, tokenizer), partition.make_mesh(data=1, fsdp=1, tensor=1))
    learner._action_mask = action_masks(tokenizer, ("action",))
    return learner


def learn(learner: Learner, steps: list[Step], iterations: range) -> list[dict[str, float]]:
    return [learner.learn(steps, iteration, Timers(), no_progress)[0] for iteration in iterations]


def same(one: object, two: object) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (one, two)), strict=True))


def test_it_reads_the_prompt_and_what_came_of_the_action(tokenizer: Tokenizer) -> None:
    turn = dataclasses.replace(steps_of(tokenizer)[0].turn, feedback=WORDS)
    whole = tokenizer.encode_chat(f"look at the lamp\n{SECTION}{WORDS}\n{CLOSING}")
    assert hindsight_prompt(tokenizer, turn, 100).tolist() == whole
    less = tokenizer.decode(hindsight_prompt(tokenizer, turn, len(whole) - 2).tolist())
    assert "look at the lamp" in less  # what came of the action is shortened first
    assert CLOSING.split()[-1] in less
    assert "red door" not in less
    assert len(hindsight_prompt(tokenizer, turn, 3)) == 3


def test_it_is_renewed_when_due_and_scores_until_hindsight_ends(tokenizer: Tokenizer) -> None:
    steps = steps_of(tokenizer)
    plain = learner_of(tokenizer, "grpo")
    learn(plain, steps, range(1))
    learner = learner_of(tokenizer, refresh=2, iterations=3)
    teacher, samples = learner._teacher, step_samples(steps)
    read = [Sample(hindsight_prompt(tokenizer, s.turn, 100), s.turn.response_tokens, s.turn.logprobs) for s in steps]
    of_start = learner._token_logprobs(learner.state.params, None, read).logprob
    for iteration in range(4):
        scored = teacher.scored(samples, steps, iteration, learner.state.params)
        if iteration == 3:
            assert scored == samples
            break
        now = learner._token_logprobs(learner.state.params, None, read).logprob
        for sample, old, new in zip(scored, of_start, now, strict=True):
            np.testing.assert_array_equal(sample.teacher, new if iteration == 2 else old)
        assert all(np.array_equal(x, y) for x, y in zip(of_start, now, strict=True)) == (iteration == 0)
        learn(learner, steps, range(iteration, iteration + 1))
        if iteration == 0:  # hindsight has an effect on what is learnt
            difference = np.abs(np.asarray(learner.state.params["embed"]) - np.asarray(plain.state.params["embed"]))
            assert difference.max() > 1e-4


def test_stopped_and_resumed_equals_uninterrupted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    steps = steps_of(tokenizer)
    whole = learner_of(tokenizer, refresh=2)  # the copy is of the policy before iteration 2
    learn(whole, steps, range(3))
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save_parts(3, whole.parts, {})
    expected = learn(whole, steps, range(3, 4))
    resumed = learner_of(tokenizer, refresh=2)
    resumed.restore(checkpoints.restore_parts(resumed.parts))
    checkpoints.close()
    assert not same(resumed.parts["params"], resumed.parts["teacher"])
    assert learn(resumed, steps, range(3, 4)) == expected
    assert same(resumed.parts, whole.parts)
