"""Conversations in packed rows: one segment has all steps, and changes nothing but the cost."""

import dataclasses
import functools
import itertools
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.config import resolve
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.dealing import deal_segments
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.models import decoder, lora
from gigpo_jax.models.attention import QUARTERS
from gigpo_jax.models.attention_kernels import splash_attention
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.policy import Policy, lora_config
from gigpo_jax.rl.losses import LossSettings, loss_denominator, policy_loss
from gigpo_jax.rl.train_step import select_microbatch
from gigpo_jax.rl.types import StepBatch, ValueTargets
from gigpo_jax.rl.update import response_logprobs
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.learner.test_learner_updates import (
    SHAPE,
    find_signal,
    learn_steps,
    make_config,
    start,
)
from tests.turns import make_turn

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


@settings(deadline=None, max_examples=40)
@given(
    turns=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=8),
    steps=st.integers(1, 60),
    rows=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_each_response_keeps_its_prompt_and_its_columns(turns, steps, rows, seed) -> None:
    rng = np.random.default_rng(seed)
    samples = together([talk(rng, count, restart=restart) for count, restart in turns])
    batches = make_minibatches(
        samples,
        steps=steps,
        row_length=96,
        rows=rows,
        rng=np.random.default_rng(seed),
        fields=FIELDS,
    )
    found = Counter(response for batch in batches for response in read_responses(batch))
    assert found == Counter(map(expected_response, samples))
    assert packing_stats(batches)["batch/steps"] == len(samples)
    assert len(batches) == -(-len(samples) // steps)
    # No update without steps, however long the conversations are.
    assert all((batch.weight > 0).any() for batch in batches)


def test_tokens_of_an_update_grow_linearly_with_turns() -> None:
    tokens = {}
    for turns in (5, 50):
        conversations = [talk(np.random.default_rng(n), turns) for n in range(4)]
        options: dict[str, Any] = {"steps": 200, "row_length": 512, "rows": 2}
        merged = make_minibatches(together(conversations), **options, rng=np.random.default_rng(0))
        separate = make_minibatches(apart(conversations), **options, rng=np.random.default_rng(0))
        tokens[turns] = packing_stats(merged)["batch/tokens"]
        assert tokens[turns] == sum(samples[-1].length for samples in conversations)
        lengths = [sample.length for sample in together(conversations)]
        assert packing_stats(separate)["batch/tokens"] == sum(lengths)
    assert tokens[50] < 10 * tokens[5]


def test_what_does_not_continue_stays_apart() -> None:
    first, second, third = talk(np.random.default_rng(0), 3)

    def count(*samples: Sample) -> int:
        return len(join_continuations(samples))

    assert count() == 0
    assert count(first, second, third) == 1
    # A prompt may also continue an earlier one than the newest.
    assert count(first, third) == 1
    assert count(second, first) == count(first, first) == 2
    response = first.response_tokens.copy()
    response[-1] = 0
    assert count(dataclasses.replace(first, response_tokens=response), second) == 2
    other = np.concatenate([[0], first.prompt_tokens[1:]]).astype(np.int32)
    for prompt in (other, first.prompt_tokens[1:]):
        assert count(dataclasses.replace(first, prompt_tokens=prompt), second) == 2
    # The end of the turn must be there: a prompt that ends with the response has nothing new.
    end = len(first.prompt_tokens) + len(first.response_tokens)
    assert count(first, dataclasses.replace(second, prompt_tokens=second.prompt_tokens[:end])) == 2


def test_a_step_without_a_response_takes_no_room_in_a_conversation() -> None:
    none = np.zeros(0, np.int32)
    samples = talk(np.random.default_rng(0), 4)
    for silent in range(4):
        changed = list(samples)
        changed[silent] = dataclasses.replace(
            samples[silent], response_tokens=none, logprobs=none.astype(np.float32)
        )
        options: dict[str, Any] = {"steps": 4, "row_length": 64, "rows": 1, "fields": FIELDS}
        (batch,) = make_minibatches(changed, **options, rng=np.random.default_rng(0))
        remaining = [sample for sample in changed if len(sample.response_tokens)]
        assert Counter(read_responses(batch)) == Counter(map(expected_response, remaining))


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    groups=st.integers(1, 12),
    seed=st.integers(0, 2**31),
)
def test_groups_are_nearly_equal_and_none_is_empty(sizes, groups, seed) -> None:
    segments = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    groups = min(groups, sum(sizes))
    dealt = deal_segments(segments, groups, np.random.default_rng(seed))
    assert len(dealt) == groups
    steps = [number for group in dealt for piece in group for number in piece.tolist()]
    assert sorted(steps) == list(range(sum(sizes)))
    longest = max(len(piece) for group in dealt for piece in group)
    assert longest <= max(sum(sizes) // groups, 1)
    counts = [sum(map(len, group)) for group in dealt]
    assert min(counts) > 0
    assert max(abs(count - sum(sizes) / groups) for count in counts) < longest + 1


MODEL = decoder.DecoderConfig(31, 32, 48, 2, 2, 1, 64)
CHATS = [talk(np.random.default_rng(n), turns) for n, turns in enumerate((7, 5, 1, 9))]
LONGEST = max(sample.length for sample in together(CHATS))


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


def interpreted_splash(*arrays: jax.Array, window: int, **options: Any) -> jax.Array:
    """The kernel of TPUs as the attention of a model without windows."""
    assert not window
    return splash_attention(*arrays, **options, interpret=True)


@pytest.fixture(scope="module")
def separate_scores() -> tuple[list[tuple], decoder.Params]:
    return score_and_differentiate(apart(CHATS), LONGEST)


@pytest.mark.parametrize(
    ("row_length", "execution"),
    [
        pytest.param(LONGEST, {}, id="dense"),
        pytest.param(256, {}, id="quarters", marks=pytest.mark.slow),  # of the queries
        pytest.param(256, {"max_segment": LONGEST}, id="bands"),
        pytest.param(
            256,
            {"attention": interpreted_splash},
            id="splash",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_log_probabilities_and_gradients_are_those_of_separate_rows(
    row_length: int, execution: dict[str, Any], separate_scores: tuple[list[tuple], decoder.Params]
) -> None:
    assert row_length == LONGEST or row_length >= max(QUARTERS, 3 * LONGEST)
    scores, gradient = score_and_differentiate(together(CHATS), row_length, **execution)
    expected_scores, expected_gradient = separate_scores
    for found, expected in zip(scores, expected_scores, strict=True):
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-6, atol=1e-6)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected_gradient)) > 0.01
    for found, expected in zip(*map(jax.tree.leaves, (gradient, expected_gradient)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


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
    return [float(x) for x in jax.tree.leaves(sums)], float(loss_denominator(micro, loss)), slopes


def check_equal_losses(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Compares two results of `compute_loss`."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-6)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_is_that_of_separate_rows(loss: LossSettings) -> None:
    check_equal_losses(compute_loss(together(CHATS), loss), compute_loss(apart(CHATS), loss))


def make_conversations() -> list[Trajectory]:
    """Four episodes of one task, three steps each, as conversations; no two rewards are equal."""
    trajectories = []
    for member in range(4):
        turns = []
        for number, sample in enumerate(talk(np.random.default_rng(member), 3)):
            turns.append(
                make_turn(
                    prompt_tokens=sample.prompt_tokens,
                    response_tokens=sample.response_tokens,
                    logprobs=sample.logprobs,
                    anchor=f"state {number}",
                    reward=0.1 * member * (1 + number) ** 2,
                )
            )
        trajectories.append(Trajectory(Task("task", "train", ""), 0, member, turns))
    return trajectories


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("ppo", {"critic.kind": "model"}),
        ("gigpo", {"model.lora.rank": 2, "rl.ratio": "sequence", "rl.loss_mean": "responses"}),
    ],
)
def test_an_iteration_learns_what_separate_rows_learn(
    algorithm: str, changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Old log-probabilities, reference, critic and adapter: the moments are the gradients."""
    folder = tmp_path_factory.mktemp("conversations") / "model"
    save_hf(folder, SHAPE, start())
    config = make_config()
    config.rl.algorithm = algorithm
    config.model.path = str(folder)
    config.batch.row_length = 64
    config.sampling.max_prompt_tokens = 48
    config.train.minibatch = 12
    config.train.epochs = 1
    config.unlock().update_from_flattened_dict(changes)
    config = resolve(config.lock())
    steps = finished_steps(make_conversations())
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    outcomes = []
    by_step = sorted(steps, key=lambda step: (step.step, step.trajectory))
    for order in (steps, by_step):
        adapter = lora_config(config)
        pairs = None if adapter is None else lora.init_adapter(SHAPE, adapter, jax.random.key(1))
        learner = Learner(config, Policy(SHAPE, start(), None, pairs, 1.0), mesh)  # type: ignore[arg-type]
        metrics, credit = learn_steps(learner, order, 0)
        critic = find_signal(learner, Critic)
        states = [learner.state.opt_state, critic.state.opt_state if critic else ()]
        advantages = {id(step): total for step, total in zip(order, credit.total, strict=True)}
        outcomes.append((metrics, jax.device_get(states), advantages))
    (found, states, advantages), (expected, expected_states, expected_advantages) = outcomes
    assert advantages == pytest.approx(expected_advantages, abs=1e-5)
    assert len(set(advantages.values())) > 3
    assert found["batch/tokens"] < 0.7 * expected["batch/tokens"]
    for name in expected:
        if not name.startswith(("batch/", "time/")):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert found["batch/steps"] == expected["batch/steps"] == 12
    for x, y in zip(*map(jax.tree.leaves, (states, expected_states)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-5 * max(np.abs(y).max(), 1e-30))


def test_hosts_with_unequal_conversations_agree_on_shapes_and_trip_counts() -> None:
    """Two hosts (threads): one has two long conversations, the other many short ones."""
    rng = np.random.default_rng(0)
    hosts = [
        together([talk(rng, 12), talk(rng, 9)]),
        together([talk(rng, int(turns)) for turns in rng.integers(1, 4, 40)]),
    ]
    sent: list[np.ndarray] = [np.zeros(0), np.zeros(0)]
    meet = threading.Barrier(2, timeout=30)

    def plan(host: int) -> list[StepBatch]:
        def gather(values: np.ndarray) -> np.ndarray:
            sent[host] = values
            meet.wait()
            gathered = np.stack(sent)
            meet.wait()
            return gathered

        return make_minibatches(
            hosts[host],
            steps=40,
            row_length=128,
            rows=1,
            rng=np.random.default_rng(0),
            gather=gather,
            fields=FIELDS,
        )

    with ThreadPoolExecutor(2) as threads:
        batches = list(threads.map(plan, range(2)))
    steps = sum(map(len, hosts))
    assert len(batches[0]) == len(batches[1]) == -(-steps // 40)
    for first, second in zip(*batches, strict=True):
        assert first.microbatches == second.microbatches
        assert first.targets.shape == second.targets.shape
    for host, samples in zip(batches, hosts, strict=True):
        found = Counter(response for batch in host for response in read_responses(batch))
        assert found == Counter(map(expected_response, samples))
