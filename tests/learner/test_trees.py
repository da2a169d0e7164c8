"""Texts that begin alike share what they begin with in packed rows, and nothing else changes."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gigpo_jax.config import resolve
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner import token_logprobs
from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.samples import Sample, step_samples
from gigpo_jax.models import decoder
from gigpo_jax.models.attention import QUARTERS
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.masks import causal_segment_mask
from gigpo_jax.policy import longest_tree, shares_prefixes
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.learner.conversations import (
    LOSSES,
    check_equal_losses,
    check_equal_scores,
    check_equal_states,
    compute_loss,
    expected_response,
    learn_iteration,
    score_and_differentiate,
    talk,
    together,
)
from tests.learner.test_learner_updates import (
    SHAPE,
    make_config,
    start,
)
from tests.turns import make_turn


def draw_texts(rng: np.random.Generator, count: int, *, symbols: int = 3) -> list[Sample]:
    """Samples whose tokens are few symbols: many begin alike, some are equal or prefixes."""
    samples = []
    for number in range(count):
        sample = talk(rng, 1)[0]
        tokens = rng.integers(1, 1 + symbols, int(rng.integers(2, 24))).astype(np.int32)
        if samples and rng.random() < 0.5:
            earlier = samples[int(rng.integers(len(samples)))]
            begin = np.concatenate([earlier.prompt_tokens, earlier.response_tokens])
            tokens = np.concatenate([begin[: int(rng.integers(1, len(begin) + 1))], tokens[1:]])
        # Neither a response nor a prompt is empty.
        size = min(len(sample.response_tokens), len(tokens) - 1)
        samples.append(
            dataclasses.replace(
                sample,
                prompt_tokens=tokens[:-size],
                response_tokens=tokens[-size:],
                logprobs=sample.logprobs[:size],
                advantage=float(number + 1),
                fields=cut_fields(sample.fields, size),
            )
        )
    return samples


def cut_fields(fields: Any, size: int) -> Any:
    """The values of the first tokens of a response."""
    return jax.tree.map(lambda value: value[:size] if np.ndim(value) else value, fields)


def read_trees(batch: StepBatch) -> list[tuple]:
    """What each response is predicted from, by the mask of attention, and its columns."""
    columns = (batch.targets, batch.behaviour, batch.advantage, batch.weight)
    found = []
    for m, b in np.ndindex(batch.tokens.shape[:2]):
        visible = np.asarray(causal_segment_mask(batch.segment_ids[m, b : b + 1]))[0]
        for number in range(1, batch.responses[m, b].max() + 1):
            places = batch.responses[m, b] == number
            index = batch.response_index[m, b, places]
            seen = np.flatnonzero(visible[index[-1]])
            assert batch.positions[m, b, seen].tolist() == list(range(len(seen)))
            assert set(np.flatnonzero(visible[index[0]])) <= set(seen)
            found.append(
                (
                    tuple(batch.tokens[m, b, seen].tolist()),
                    tuple(batch.positions[m, b, index].tolist()),
                    *(tuple(column[m, b, places].tolist()) for column in columns),
                )
            )
    return found


def count_prefixes(samples: Sequence[Sample]) -> int:
    """Distinct beginnings of texts: the tokens of their tree."""
    begins = set()
    for sample in samples:
        text = (*sample.prompt_tokens.tolist(), *sample.response_tokens[:-1].tolist())
        begins |= {text[:end] for end in range(1, len(text) + 1)}
    return len(begins)


# Without shrinking, which takes minutes: a failure names the seed and the sizes of its example.
@settings(deadline=None, max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    count=st.integers(1, 25),
    turns=st.integers(0, 4),
    steps=st.integers(1, 30),
    longest_tree=st.integers(1, 96),
    order=st.sampled_from(["sorted", "random", "group"]),
    seed=st.integers(0, 2**31),
)
def test_each_response_sees_its_own_text(count, turns, steps, longest_tree, order, seed) -> None:
    rng = np.random.default_rng(seed)
    samples = [*draw_texts(rng, count), *talk(rng, turns)]
    options: dict[str, Any] = {"row_length": 96, "rows": 2, "longest_tree": longest_tree}
    options["rng"] = None if order == "sorted" else np.random.default_rng(seed)
    if order == "group":
        options["groups"] = np.sort(rng.integers(0, 4, count + turns)).tolist()
    batches = make_minibatches(samples, steps=steps, **options)
    found = Counter(response for batch in batches for response in read_trees(batch))
    assert found == Counter(expected_response(sample)[:6] for sample in samples)
    assert packing_stats(batches)["batch/steps"] == len(samples)
    for batch in batches:
        # No token is seen from farther away than a band of attention would look.
        ends = batch.segment_ids[:, :, 1]
        longest_text = max(sample.length for sample in samples)
        assert (ends - np.arange(96)).max() <= max(longest_tree, longest_text)


def test_each_distinct_beginning_is_computed_once() -> None:
    samples = draw_texts(np.random.default_rng(0), 60)
    settings: dict[str, Any] = {"steps": 60, "row_length": 1024, "rows": 1, "rng": None}
    (shared,) = make_minibatches(samples, **settings, longest_tree=1024)
    (separate,) = make_minibatches(samples, **settings)
    # The symbols that a text can begin with are its trees.
    assert packing_stats([shared])["batch/tokens"] == count_prefixes(samples)
    assert packing_stats([separate])["batch/tokens"] > 1.4 * count_prefixes(samples)
    # Texts that share nothing are not joined, and an order by tokens puts others together.
    alone = [
        dataclasses.replace(samples[0], prompt_tokens=np.array([n, 1, 2], np.int32))
        for n in range(1, 5)
    ]
    (batch,) = make_minibatches(alone, **settings, longest_tree=1024)
    assert batch.segment_ids[0, 0, 0].max() == 4
    halves = make_minibatches([*samples, *samples], **settings, longest_tree=1024)
    total = packing_stats(halves)["batch/tokens"]
    assert len(halves) == 2
    assert count_prefixes(samples) <= total < 1.1 * count_prefixes(samples)


def test_equal_texts_share_no_more_than_a_row_of_responses() -> None:
    """Their tokens fit one row many times; the loss of each takes a place of its own."""
    sample = talk(np.random.default_rng(0), 1)[0]
    samples = [sample] * (96 // len(sample.response_tokens) + 1)
    batches = make_minibatches(
        samples, steps=len(samples), row_length=96, rows=1, rng=None, longest_tree=96
    )
    found = Counter(response for batch in batches for response in read_trees(batch))
    assert found == Counter(expected_response(sample)[:6] for sample in samples)


def test_texts_with_experts_given_stay_apart() -> None:
    samples = [
        dataclasses.replace(sample, routes=np.zeros((sample.length, 2), np.uint8))
        for sample in draw_texts(np.random.default_rng(0), 8)
    ]
    options: dict[str, Any] = {"steps": 8, "row_length": 256, "rows": 1, "rng": None}
    (batch,) = make_minibatches(samples, **options, longest_tree=256)
    assert batch.segment_ids.ndim == 3
    assert packing_stats([batch])["batch/tokens"] == sum(sample.length for sample in samples)


TEXTS = [
    *draw_texts(np.random.default_rng(5), 14),
    *together([talk(np.random.default_rng(n), 4) for n in range(2)]),
]
# A text that begins like no other, one that is the beginning of another, and one twice.
TEXTS += [
    talk(np.random.default_rng(9), 1)[0],
    dataclasses.replace(TEXTS[0], advantage=31.0),
    dataclasses.replace(TEXTS[1], prompt_tokens=TEXTS[1].prompt_tokens[:1], advantage=32.0),
]
LONGEST = max(sample.length for sample in TEXTS)


@pytest.fixture(scope="module")
def separate_scores() -> tuple[list[tuple], decoder.Params]:
    return score_and_differentiate(TEXTS, LONGEST)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row_length", "execution"),
    [
        (96, {}),
        (256, {}),  # by quarters of the queries
        (256, {"max_segment": 64}),  # in bands
    ],
    ids=["dense", "quarters", "bands"],
)
def test_log_probabilities_and_gradients_are_those_of_separate_texts(
    row_length: int, execution: dict[str, Any], separate_scores: tuple[list[tuple], decoder.Params]
) -> None:
    longest_tree = execution.get("max_segment", row_length)
    assert row_length == 96 or row_length >= max(QUARTERS, 3 * 64)
    found = score_and_differentiate(TEXTS, row_length, longest_tree=longest_tree, **execution)
    check_equal_scores(found, separate_scores)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_is_that_of_separate_texts(loss: LossSettings) -> None:
    check_equal_losses(compute_loss(TEXTS, loss, longest_tree=96), compute_loss(TEXTS, loss))


def make_trajectories() -> list[Trajectory]:
    """Four episodes of two tasks, three steps each, many of which begin alike."""
    samples = draw_texts(np.random.default_rng(3), 12)
    trajectories = []
    for member in range(4):
        turns = [
            make_turn(
                prompt_tokens=sample.prompt_tokens,
                response_tokens=sample.response_tokens,
                logprobs=sample.logprobs,
                anchor=f"state {number}",
                reward=0.1 * member * (1 + number) ** 2,
            )
            for number, sample in enumerate(samples[3 * member : 3 * member + 3])
        ]
        group = member % 2
        task = Task(f"task {group}", "train", "")
        trajectories.append(Trajectory(task, group, member // 2, turns))
    return trajectories


BY_GROUP = {"train.minibatch_by": "group", "train.minibatch": 6}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("gigpo", {"model.lora.rank": 2, **BY_GROUP}),
        # A critic of its own, and the means of log-probabilities and entropies.
        pytest.param("ppo", {"critic.kind": "model"}, marks=pytest.mark.long),
        pytest.param("ppo", {"critic.kind": "model", **BY_GROUP}, marks=pytest.mark.long),
        pytest.param("empg", {"rl.kl_in": "reward"}, marks=pytest.mark.long),
    ],
)
def test_an_iteration_learns_what_it_learns_from_separate_texts(
    algorithm: str,
    changes: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Old log-probabilities, reference, critic and adapter: the moments are the gradients."""
    folder = tmp_path_factory.mktemp("trees") / "model"
    save_hf(folder, SHAPE, start())
    steps = finished_steps(make_trajectories())
    outcomes = {}
    tokens = []  # of each score with shared prefixes

    def count_tokens(samples: Sequence[Sample], **options: Any) -> list[StepBatch]:
        batches = make_minibatches(samples, **options)
        if share:
            tokens.append(packing_stats(batches)["batch/tokens"])
        return batches

    monkeypatch.setattr(token_logprobs, "make_minibatches", count_tokens)
    for share in (False, True):
        config = make_config()
        config.rl.algorithm = algorithm
        config.model.path = str(folder)
        config.batch.row_length, config.batch.share_prefixes = 96, share
        config.sampling.max_prompt_tokens = 64
        config.train.minibatch, config.train.epochs = 12, 1
        config.unlock().update_from_flattened_dict(changes)
        config = resolve(config.lock())
        metrics, states, credit = learn_iteration(config, steps)
        outcomes[share] = (metrics, states, credit.total)
    expected, expected_states, expected_advantages = outcomes[False]
    assert len(set(expected_advantages.tolist())) > 3
    # Of the old and the reference policy.
    assert len(tokens) >= 2
    scored = step_samples(steps)
    assert min(tokens) >= count_prefixes(scored)
    assert max(tokens) < 0.85 * sum(sample.length for sample in scored)
    found, states, advantages = outcomes[True]
    if config.train.minibatch_by == "group":
        assert found.pop("batch/tokens") < 0.85 * expected.pop("batch/tokens")
        assert found.pop("batch/padding_share") != expected.pop("batch/padding_share")
    np.testing.assert_allclose(advantages, expected_advantages, rtol=0, atol=1e-5)
    for name in expected:
        if not name.startswith("time/"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    check_equal_states(states, expected_states)


def test_replayed_experts_keep_texts_apart() -> None:
    config = make_config()
    assert not shares_prefixes(config)
    config.batch.share_prefixes = True
    assert shares_prefixes(config)
    config.model.replay_routes = True
    assert not shares_prefixes(config)
    # Whole rows have room for trees as long as rows; bands look no farther than a text.
    config.batch.row_length = 47
    assert longest_tree(config) == 47
    config.batch.row_length = 48
    assert longest_tree(config) == 16
