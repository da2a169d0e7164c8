"""On-policy distillation: what its gradient is, what the teacher scores, what is refused."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.memory import memory_estimate
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.table import signal_bytes
from gigpo_jax.learner.teachers import FrozenModel
from gigpo_jax.methods.opd.advantages import distillation_advantages
from gigpo_jax.models import decoder, next_tokens
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.trajectory import Step, StepCredit, finished_steps
from tests.learner.test_learner_updates import (
    find_signal,
    learn_steps,
    make_config,
    make_trajectories,
)
from tests.rl.test_losses import loss_of, tokens

WORDS = "look at the lamp you see a red door"
NO_CREDIT = StepCredit(*[np.zeros(0)] * 4)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_tokenizer([WORDS])


def random_params(shape: decoder.DecoderConfig, seed: int) -> decoder.Params:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32),
        decoder.abstract_params(shape),
    )


def make_folder(folder: Path, tokenizer: Tokenizer, shape: decoder.DecoderConfig) -> Path:
    save_hf(folder, shape, random_params(shape, 5), tokenizer=tokenizer)
    return folder


@pytest.fixture(scope="module")
def teacher_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger model than the policy, with the same tokens."""
    shape = decoder.DecoderConfig(tokenizer.vocab_size, 24, 40, 2, 3, 1, 8)
    return make_folder(tmp_path_factory.mktemp("teacher") / "model", tokenizer, shape)


def policy_shape(tokenizer: Tokenizer) -> decoder.DecoderConfig:
    return decoder.DecoderConfig(tokenizer.vocab_size, 16, 32, 1, 2, 1, 8)


def learner_of(tokenizer: Tokenizer, teacher: Path, **settings: float) -> Learner:
    config = make_config()
    config.rl.algorithm, config.rl.kl_coef = "opd", 0.0
    config.rl.settings = ConfigDict({"teacher": str(teacher), **settings})
    config.rl.old_logprobs, config.optim.weight_decay = "engine", 0.0
    config.train.epochs = 1
    shape = policy_shape(tokenizer)
    policy = Policy(shape, random_params(shape, 1), tokenizer)
    return Learner(resolve(config), policy, make_mesh(data=1, fsdp=1, tensor=1))


def steps_of(learner: Learner) -> list[Step]:
    """Steps whose behaviour log-probabilities are the policy's own."""
    steps = finished_steps(make_trajectories())
    count = learner._policy.config.vocab_size
    turns = [
        dataclasses.replace(
            step.turn,
            prompt_tokens=step.turn.prompt_tokens % count,
            response_tokens=step.turn.response_tokens % count,
        )
        for step in steps
    ]
    steps = [dataclasses.replace(s, turn=turn) for s, turn in zip(steps, turns, strict=True)]
    scores = learner.score_steps(steps).token_logprobs.logprob
    return [
        dataclasses.replace(s, turn=dataclasses.replace(s.turn, logprobs=score))
        for s, score in zip(steps, scores, strict=True)
    ]


@pytest.mark.slow
def test_the_expected_gradient_is_that_of_the_reverse_kl_divergence() -> None:
    """Over all tokens of a small vocabulary, each weighed by its probability."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=7))
    teacher = jax.nn.log_softmax(jnp.asarray(rng.normal(size=7)))
    behaviour = jax.nn.log_softmax(logits)
    settings = LossSettings(
        0.2,
        0.2,
        token_advantages=lambda a, d, m, k: distillation_advantages(a, d, m, k),
    )
    batch = dataclasses.replace(
        tokens(behaviour, jnp.zeros(7), jnp.exp(behaviour)), teacher=teacher[None]
    )

    def loss(logits: jax.Array) -> jax.Array:
        return loss_of(jax.nn.log_softmax(logits), batch, settings).loss

    def divergence(logits: jax.Array) -> jax.Array:
        logprob = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(logprob) * (logprob - teacher))

    np.testing.assert_allclose(jax.grad(loss)(logits), jax.grad(divergence)(logits), atol=1e-6)


def test_the_teacher_scores_the_tokens_that_the_policy_sampled(
    tokenizer: Tokenizer, teacher_folder: Path
) -> None:
    learner = learner_of(tokenizer, teacher_folder)
    steps = steps_of(learner)
    credited = CreditedSteps(learner.score_steps(steps), {}, NO_CREDIT, 0)
    scores = find_signal(learner, FrozenModel).compute_fields(credited)["teacher"]
    shape = decoder.DecoderConfig(tokenizer.vocab_size, 24, 40, 2, 3, 1, 8)
    for step, score in zip(steps, scores, strict=True):
        prompt = step.turn.prompt_tokens
        response = step.turn.response_tokens
        row = jnp.asarray(np.concatenate([prompt, response]))[None]
        logits = next_tokens.logits(shape, random_params(shape, 5), row)[0] / 0.7
        logprob = jax.nn.log_softmax(logits)[len(prompt) - 1 : -1]
        want = jnp.take_along_axis(logprob, jnp.asarray(response)[:, None], 1)[:, 0]
        np.testing.assert_allclose(score, want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_policy_is_left_as_it_is_by_itself_as_teacher(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    shape = policy_shape(tokenizer)
    save_hf(tmp_path / "model", shape, random_params(shape, 1), tokenizer=tokenizer)
    learner = learner_of(tokenizer, tmp_path / "model")
    metrics, _ = learn_steps(learner, steps_of(learner), 0)
    assert metrics["policy/grad_norm"] < 1e-5


@pytest.mark.slow
def test_updates_bring_the_policy_nearer_to_the_teacher(
    tokenizer: Tokenizer, teacher_folder: Path
) -> None:
    """Of tokens that the teacher finds likelier than the policy, probabilities rise."""
    learner = learner_of(tokenizer, teacher_folder)
    steps = steps_of(learner)
    scored = learner.score_steps(steps)
    teacher = find_signal(learner, FrozenModel).compute_fields(
        CreditedSteps(scored, {}, NO_CREDIT, 0)
    )["teacher"]
    start = scored.token_logprobs.logprob
    learn_steps(learner, steps, 0)
    end = learner.score_steps(steps).token_logprobs.logprob
    change = np.concatenate(end) - np.concatenate(start)
    gap = np.concatenate(teacher) - np.concatenate(start)
    assert np.corrcoef(change, gap)[0, 1] > 0.3


@pytest.mark.slow
def test_the_outcome_counts_as_much_as_its_weight_says(
    tokenizer: Tokenizer, teacher_folder: Path
) -> None:
    alone = learner_of(tokenizer, teacher_folder)
    _, credit = learn_steps(alone, steps_of(alone), 0)
    assert not np.any(credit.total)
    both = learner_of(tokenizer, teacher_folder, outcome=0.5)
    _, half = learn_steps(both, steps_of(both), 0)
    whole = learner_of(tokenizer, teacher_folder, outcome=1.0)
    _, full = learn_steps(whole, steps_of(whole), 0)
    assert np.abs(full.total).max() > 0.5
    np.testing.assert_allclose(2 * half.total, full.total, rtol=1e-6)


def test_a_teacher_with_other_tokens_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    other = word_tokenizer([WORDS + " window"])
    folder = make_folder(
        tmp_path / "model", other, decoder.DecoderConfig(other.vocab_size, 8, 8, 1, 1, 1, 8)
    )
    with pytest.raises(InputError, match=r"rl\.settings\.teacher=.*: its tokens are not those"):
        learner_of(tokenizer, folder)


def test_a_missing_teacher_is_refused_before_anything_is_loaded() -> None:
    config = make_config()
    config.rl.algorithm = "opd"
    with pytest.raises(
        InputError, match=r"rl\.settings\.teacher='': must be a model folder, ORG/NAME"
    ):
        resolve(config)


def test_the_estimate_counts_the_teacher_as_it_is_kept(
    tokenizer: Tokenizer, teacher_folder: Path
) -> None:
    config = make_config()
    config.rl.algorithm = "opd"
    config.rl.settings = ConfigDict({"teacher": str(teacher_folder)})
    config.model.compute_dtype = "bfloat16"
    shape = decoder.DecoderConfig(tokenizer.vocab_size, 24, 40, 2, 3, 1, 8)
    config = resolve(config)
    signals = signal_bytes(config, policy_shape(tokenizer))
    estimate = memory_estimate(config, policy_shape(tokenizer), devices=1, signals=signals)
    assert estimate["teacher"] == 2 * decoder.param_count(shape)
