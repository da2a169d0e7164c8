"""Conversations as samples, and what the learner computes of them in packed rows."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.models import decoder, lora
from gigpo_jax.policy import Policy, lora_config
from gigpo_jax.rl.losses import LossSettings, loss_divisor, policy_loss
from gigpo_jax.rl.train_step import select_microbatch
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import response_logprobs
from gigpo_jax.rl.value_targets import ValueTargets
from gigpo_jax.trajectory import Step, StepCredit
from tests.learner.test_learner_updates import SHAPE, find_signal, learn_steps, start

FIELDS = {
    "action_mask": np.bool_,
    "clip_scale": np.float32,
    "teacher": np.float32,
    "values": ValueTargets(np.float32, np.float32, np.float32),
}


def talk(rng: np.random.Generator, turns: int, *, restart: int = 0) -> list[Sample]:
    """The samples of a conversation; with `restart` it forgets everything before that step."""
    samples = []
    past = rng.integers(1, 31, 6)
    for turn in range(turns):
        if restart and turn == restart:
            past = rng.integers(1, 31, 4)
        prompt = np.concatenate([past, rng.integers(1, 31, rng.integers(1, 5))]).astype(np.int32)
        size = int(rng.integers(1, 5))
        response = rng.integers(1, 31, size).astype(np.int32)
        fields = {
            "action_mask": rng.random(size) < 0.5,
            "clip_scale": float(np.float32(rng.uniform(0.5, 1))),
            "teacher": rng.normal(-3, 0.2, size).astype(np.float32),
            "values": ValueTargets(
                *rng.normal(size=(2, size)).astype(np.float32), np.arange(size) == 0
            ),
        }
        samples.append(
            Sample(
                prompt,
                response,
                rng.normal(-3, 0.2, size).astype(np.float32),
                float(np.float32(rng.normal())),
                float(np.float32(rng.uniform(0.5, 1))),
                fields=fields,
            )
        )
        past = np.concatenate([prompt, response])
    return samples


def apart(conversations: Sequence[Sequence[Sample]]) -> list[Sample]:
    """The same samples in an order in which none continues the one before it."""
    samples = together(conversations)[::-1]
    assert len(join_continuations(samples)) == len(samples)
    return samples


def together(conversations: Sequence[Sequence[Sample]]) -> list[Sample]:
    return list(itertools.chain.from_iterable(conversations))


def read_responses(batch: StepBatch) -> list[tuple]:
    """What each response is predicted from, and its columns, from the arrays alone."""
    found = []
    columns = [
        *(getattr(batch, name) for name in ("targets", "behaviour", "advantage", "weight")),
        *jax.tree.leaves({name: getattr(batch, name) for name in FIELDS}),
    ]
    for m, b in np.ndindex(batch.tokens.shape[:2]):
        segments = batch.segment_ids[m, b]
        for number in range(1, batch.responses[m, b].max() + 1):
            places = batch.responses[m, b] == number
            assert (batch.weight[m, b, places] > 0).all()
            index = batch.response_index[m, b, places]
            start = np.flatnonzero(segments == segments[index[0]])[0]
            # A hidden state has read its segment up to its own position.
            read = batch.tokens[m, b, start : index[-1] + 1]
            assert (segments[start : index[-1] + 1] == segments[start]).all()
            positions = batch.positions[m, b, start : index[-1] + 1]
            assert positions.tolist() == list(range(len(positions)))
            found.append(
                (
                    tuple(read.tolist()),
                    tuple((index - start).tolist()),
                    *(tuple(column[m, b, places].tolist()) for column in columns),
                )
            )
    return found


def expected_response(sample: Sample) -> tuple:
    size = len(sample.response_tokens)
    whole = np.concatenate([sample.prompt_tokens, sample.response_tokens[:-1]])
    columns = [
        sample.response_tokens,
        sample.logprobs,
        sample.advantage,
        sample.weight,
        *jax.tree.leaves({name: sample.fields[name] for name in FIELDS}),
    ]
    return (
        tuple(whole.tolist()),
        tuple(range(len(sample.prompt_tokens) - 1, len(whole))),
        *(tuple(np.broadcast_to(column, size).tolist()) for column in columns),
    )


MODEL = decoder.DecoderConfig(31, 32, 48, 2, 2, 1, 64)


def score_and_differentiate(
    samples: Sequence[Sample], row_length: int, *, longest_tree: int = 0, **execution: Any
) -> tuple[list[tuple], decoder.Params]:
    """Log-probability and entropy of each response, and the gradient of a mean of all."""
    (batch,) = make_minibatches(
        samples,
        steps=len(samples),
        row_length=row_length,
        rows=2,
        rng=np.random.default_rng(0),
        longest_tree=longest_tree,
    )
    params = decoder.init_params(MODEL, jax.random.key(0))
    params = jax.tree.map(lambda x: 3.0 * x if x.ndim > 1 else x, params)

    def forward(params: Any, tokens: Any, positions: Any, segments: Any, images: Any) -> Any:
        del images
        how = decoder.Execution(**execution)
        hidden = decoder.hidden_states(MODEL, params, tokens, positions, segments, how)
        return hidden, decoder.output_embedding(MODEL, params)

    @jax.jit
    def measure(params: decoder.Params, micro: StepBatch) -> tuple[Any, Any]:
        def total(params: decoder.Params) -> tuple[Any, Any]:
            scores = response_logprobs(functools.partial(forward, params), micro, chunk=4096)
            # Each response has a weight of its own, so that no two may change places.
            share = micro.weight * micro.advantage / batch.weight.sum()
            return jnp.sum(share * (scores[0] + 0.1 * scores[1])), scores

        return jax.grad(total, has_aux=True)(params)

    scores = []
    gradient = jax.tree.map(np.zeros_like, params)
    for m in range(int(batch.microbatches)):
        micro = select_microbatch(batch, m)
        grads, arrays = measure(params, micro)
        gradient = jax.tree.map(lambda x, y: x + np.asarray(y), gradient, grads)
        for b, numbers in enumerate(np.asarray(micro.responses)):
            for number in range(1, numbers.max() + 1):
                places = numbers == number
                # The advantage tells which response it is.
                name = float(micro.advantage[b, places][0])
                scores.append((name, *(np.asarray(array[b])[places] for array in arrays)))
    return sorted(scores, key=lambda row: row[0]), gradient


def check_equal_scores(
    found: tuple[list[tuple], decoder.Params], expected: tuple[list[tuple], decoder.Params]
) -> None:
    """Compares two results of `score_and_differentiate`."""
    for response, other in zip(found[0], expected[0], strict=True):
        assert response[0] == other[0]
        np.testing.assert_allclose(response[1:], other[1:], rtol=1e-6, atol=1e-6)
    leaves, other_leaves = (jax.tree.leaves(gradient) for _, gradient in (found, expected))
    largest = max(np.abs(leaf).max() for leaf in other_leaves)
    assert largest > 0.01
    for leaf, other in zip(leaves, other_leaves, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=0, atol=1e-6 * max(largest, 1.0))


LOSSES = [
    LossSettings(0.02, 0.03),
    LossSettings(0.02, 0.03, mean="responses", ratio="sequence", kl_coef=0.3),
    LossSettings(0.02, 0.03, mean="constant", constant=7, entropy_coef=0.2),
    LossSettings(0.02, 0.03, mean="responses", ratio="product"),
    LossSettings(0.02, 0.03, mean="episodes", ratio="hoelder", power=lambda _: 0.7),
    LossSettings(0.02, 0.03, mean="responses", ratio="hoelder_tokens", dual_clip=1.01),
    LossSettings(0.02, 0.03, correction="truncated_sequence", importance_cap=1.02),
    LossSettings(0.02, 0.03, correction="truncated", importance_cap=1.02),
    LossSettings(0.02, 0.03, mean="responses", correction="masked_sequence", importance_cap=1.3),
    LossSettings(0.02, 0.03, correction="masked_mean", importance_cap=1.1),
    LossSettings(
        0.02,
        0.03,
        token_advantages=lambda advantage, difference, mask, _: advantage + difference * mask,
    ),
]


def compute_loss(
    samples: Sequence[Sample], loss: LossSettings, longest_tree: int = 0
) -> tuple[list[float], float, list[tuple]]:
    """Sums, divisor and the slope of every token, from log-probabilities that packing has no part
    in.
    """
    (batch,) = make_minibatches(
        samples,
        steps=len(samples),
        row_length=96,
        rows=16,
        rng=np.random.default_rng(0),
        fields=FIELDS,
        longest_tree=longest_tree,
    )
    micro = select_microbatch(batch, 0)
    assert int(batch.microbatches) == 1
    # A function of the token and of its response, wherever these stand.
    noise = np.sin(37.0 * micro.behaviour + 11.0 * micro.advantage).astype(np.float32)
    micro = dataclasses.replace(
        micro,
        proximal=micro.behaviour + 0.04 * np.cos(53.0 * micro.behaviour).astype(np.float32),
        reference=micro.behaviour - 0.3 * noise,
    )

    def lose(logprob: jax.Array) -> tuple[jax.Array, Any]:
        sums = policy_loss(logprob, 1.0 - logprob, micro, loss)
        return sums.loss, sums

    slope, sums = jax.grad(lose, has_aux=True)(jnp.asarray(micro.behaviour + 0.05 * noise))
    is_response = micro.weight > 0
    columns = (micro.behaviour, micro.advantage, np.asarray(slope))
    slopes = sorted(zip(*(column[is_response].tolist() for column in columns), strict=True))
    return [float(x) for x in jax.tree.leaves(sums)], float(loss_divisor(micro, loss)), slopes


def check_equal_losses(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Compares two results of `compute_loss`."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-6)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-6, atol=1e-6)


def learn_iteration(
    config: ConfigDict, steps: Sequence[Step]
) -> tuple[dict[str, float], list[Any], StepCredit]:
    """Metrics, states of the optimizers of policy and critic, and credit of one iteration."""
    adapter = lora_config(config)
    pairs = None if adapter is None else lora.init_adapter(SHAPE, adapter, jax.random.key(1))
    policy = Policy(SHAPE, start(), None, pairs, 1.0)  # type: ignore[arg-type]
    learner = Learner(config, policy, make_mesh(data=1, fsdp=1, tensor=1))
    metrics, credit = learn_steps(learner, steps, 0)
    critic = find_signal(learner, Critic)
    states = [learner.state.opt_state, critic.state.opt_state if critic else ()]
    return metrics, jax.device_get(states), credit


def check_equal_states(found: list[Any], expected: list[Any]) -> None:
    """The moments are the gradients: of policy, critic and adapter."""
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-5 * max(np.abs(y).max(), 1e-30))
