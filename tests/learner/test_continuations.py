"""Conversations in packed rows: one segment has all steps, and changes nothing but the cost."""

import dataclasses
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.config import resolve
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.dealing import deal_segments
from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.models import decoder
from gigpo_jax.models.attention import QUARTERS
from gigpo_jax.models.attention_kernels import splash_attention
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.learner.conversations import (
    FIELDS,
    LOSSES,
    apart,
    check_equal_losses,
    check_equal_scores,
    check_equal_states,
    compute_loss,
    expected_response,
    learn_iteration,
    read_responses,
    score_and_differentiate,
    talk,
    together,
)
from tests.learner.exchange import Gather, on_two_hosts
from tests.learner.test_learner_updates import (
    SHAPE,
    make_config,
    start,
)
from tests.turns import make_turn


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


CHATS = [talk(np.random.default_rng(n), turns) for n, turns in enumerate((7, 5, 1, 9))]
LONGEST = max(sample.length for sample in together(CHATS))


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
    found = score_and_differentiate(together(CHATS), row_length, **execution)
    check_equal_scores(found, separate_scores)


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
    outcomes = []
    by_step = sorted(steps, key=lambda step: (step.step, step.trajectory))
    for order in (steps, by_step):
        metrics, states, credit = learn_iteration(config, order)
        advantages = {id(step): total for step, total in zip(order, credit.total, strict=True)}
        outcomes.append((metrics, states, advantages))
    (found, states, advantages), (expected, expected_states, expected_advantages) = outcomes
    assert advantages == pytest.approx(expected_advantages, abs=1e-5)
    assert len(set(advantages.values())) > 3
    assert found["batch/tokens"] < 0.7 * expected["batch/tokens"]
    for name in expected:
        if not name.startswith(("batch/", "time/")):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert found["batch/steps"] == expected["batch/steps"] == 12
    check_equal_states(states, expected_states)


def test_hosts_with_unequal_conversations_agree_on_shapes_and_trip_counts() -> None:
    """Two hosts (threads): one has two long conversations, the other many short ones."""
    rng = np.random.default_rng(0)
    hosts = [
        together([talk(rng, 12), talk(rng, 9)]),
        together([talk(rng, int(turns)) for turns in rng.integers(1, 4, 40)]),
    ]

    def plan(host: int, gather: Gather) -> list[StepBatch]:
        return make_minibatches(
            hosts[host],
            steps=40,
            row_length=128,
            rows=1,
            rng=np.random.default_rng(0),
            gather=gather,
            fields=FIELDS,
        )

    batches = on_two_hosts(plan)
    steps = sum(map(len, hosts))
    assert len(batches[0]) == len(batches[1]) == -(-steps // 40)
    for first, second in zip(*batches, strict=True):
        assert first.microbatches == second.microbatches
        assert first.targets.shape == second.targets.shape
    for host, samples in zip(batches, hosts, strict=True):
        found = Counter(response for batch in host for response in read_responses(batch))
        assert found == Counter(map(expected_response, samples))
