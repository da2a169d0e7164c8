"""Samples -> minibatches of whole steps, packed into rows of fixed length.

A sample is one environment step: a prompt and the response to it. Its `prompt + response` without
the last token is the model's input (nothing is predicted from the last token), so hidden state p
predicts token p + 1 of the same sample. Only response tokens carry loss, so what the loss needs is
stored for response tokens alone (`[M, B, C]`, C much less than T), and the vocabulary product runs
over those positions only.

Shapes: M microbatches, B rows, T tokens in a row, C response tokens in a row, N environment steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from gigpo_jax.learner.packed_images import add_images
from gigpo_jax.learner.rows import SamplePlacement, pack_rows, place_samples, response_capacity
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models.attention import segment_limit
from gigpo_jax.rl.types import StepBatch

NO_FIELDS: Mapping[str, Any] = MappingProxyType({})

# [k] of this host -> [hosts, k], as `exchange.all_hosts`
Gather = Callable[[np.ndarray], np.ndarray]


class BatchShape(NamedTuple):
    """Sizes of a minibatch's arrays.

    Attributes:
      microbatches: M.
      rows: B.
      tokens: T.
      responses: C.
    """

    microbatches: int
    rows: int
    tokens: int
    responses: int


def split_steps(n: int, groups: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffles n steps and deals them into nearly equal groups.

    Sizes differ by at most one.
    """
    return np.array_split(rng.permutation(n), groups)


def make_minibatches(
    samples: Sequence[Sample],
    *,
    steps: int,
    row_length: int,
    rows: int,
    rng: np.random.Generator,
    gather: Gather = lambda values: values[None],
    fields: Mapping[str, Any] = NO_FIELDS,
    longest: int = 0,
) -> list[StepBatch]:
    """All minibatches of `stream_minibatches` at once."""
    batches = stream_minibatches(
        samples,
        steps=steps,
        row_length=row_length,
        rows=rows,
        rng=rng,
        gather=gather,
        fields=fields,
        longest=longest,
    )
    return list(batches)


def stream_minibatches(
    samples: Sequence[Sample],
    *,
    steps: int,
    row_length: int,
    rows: int,
    rng: np.random.Generator,
    gather: Gather = lambda values: values[None],
    fields: Mapping[str, Any] = NO_FIELDS,
    longest: int = 0,
) -> Iterator[StepBatch]:
    """Packs samples into minibatches of whole steps.

    Every sample is in exactly one. There are ceil(all steps / `steps`) minibatches of nearly equal
    size. All hosts get the same number of minibatches and of microbatches, and the same shapes;
    every host contributes its own `rows`.

    Args:
      samples: samples of this host.
      steps: environment steps in a minibatch, over all hosts.
      row_length: T.
      rows: B of this host.
      rng: generator that shuffles the steps; one seed for a run and iteration gives the same
        minibatches.
      gather: function that gathers [k] i64 of every host, [hosts, k].
      fields: dtype of each optional field of `StepBatch` that the samples have, or a pytree of
        dtypes.
      longest: tokens of the longest sample that the run can have; then batches without images have
        room for `steps` of these, whatever the samples, and one program is enough. 0: not known.

    Returns:
      Minibatches of host arrays, all of the same shapes; each is filled when its turn comes.

    Raises:
      InputError: a sample is longer than a row.
    """
    lengths = np.array([sample.length for sample in samples], np.int64)
    responses = np.array([len(sample.response_tokens) for sample in samples], np.int64)
    has_images = any(sample.images is not None for sample in samples)
    local_numbers = [
        len(samples),
        lengths.sum(),
        responses.sum(),
        responses.max(initial=0),
        has_images,
    ]
    # Totals over all hosts decide the shapes: each host has to compile and run the same programs.
    numbers = gather(np.array(local_numbers, np.int64))
    all_steps, all_tokens, all_responses = numbers[:, :3].sum(0).tolist()
    longest_response = int(numbers[:, 3].max())
    capacity = response_capacity(all_tokens, all_responses, longest_response, row_length)

    # Steps are dealt before they are packed: a minibatch has whole steps, however long they are.
    minibatches = split_steps(len(samples), max(1, -(-all_steps // steps)), rng)
    placements = []
    local_counts = []
    for members in minibatches:
        packed_rows = pack_rows(lengths[members], responses[members], row_length, capacity)
        placements.append(place_samples([samples[i] for i in members], packed_rows))
        local_counts.append(-(-len(packed_rows) // rows))
    # The fullest host decides: one with fewer microbatches would leave the others waiting in a
    # collective operation for ever.
    counts = gather(np.array(local_counts, np.int64)).max(0).tolist()
    # Powers of four: minibatches of all iterations have few shapes, and few programs compile. The
    # rows behind `StepBatch.microbatches` are stored and not computed.
    needed = max(counts)
    if longest and not numbers[:, 4].any():
        needed = max(needed, most_microbatches(steps, len(numbers), longest, row_length, rows))
    stored = 4
    while stored < needed:
        stored *= 4
    shape = BatchShape(stored, rows, row_length, capacity)
    # A generator: supervised training fills one minibatch at a time.
    batches = (
        _fill_batch(places, shape, max(count, 1), fields)
        for places, count in zip(placements, counts, strict=True)
    )
    if numbers[:, 4].any():
        return add_images(batches, placements, shape[:3], gather)
    return batches


def most_microbatches(steps: int, hosts: int, longest: int, row_length: int, rows: int) -> int:
    """Microbatches of a host if all samples had `longest` tokens."""
    row_samples = max(1, min(row_length // longest, segment_limit(row_length)))
    return -(-steps // (hosts * row_samples * rows))


def packing_stats(batches: Sequence[StepBatch]) -> dict[str, float]:
    """Steps, tokens and the padding share of host minibatches.

    Only computed rows count.
    """
    steps = 0
    tokens = 0
    computed = 0
    for batch in batches:
        segments = batch.segment_ids[: int(batch.microbatches)]
        # The samples of a row are numbered from 1.
        steps += int(segments.max(-1).sum())
        tokens += int((segments > 0).sum())
        computed += segments.size
    return {
        "batch/steps": steps,
        "batch/tokens": tokens,
        "batch/padding_share": 1 - tokens / max(computed, 1),
    }


def _fill_batch(
    placements: Sequence[SamplePlacement],
    shape: BatchShape,
    microbatches: int,
    fields: Mapping[str, Any],
) -> StepBatch:
    """Writes placed samples into arrays.

    The first `microbatches` of them are computed.
    """
    rows = shape.microbatches * shape.rows

    def token_array() -> np.ndarray:
        return np.zeros((rows, shape.tokens), np.int32)

    def response_array(dtype: Any) -> np.ndarray:
        return np.zeros((rows, shape.responses), dtype)

    tokens = token_array()
    positions = token_array()
    segment_ids = token_array()
    response_index = response_array(np.int32)
    targets = response_array(np.int32)
    behaviour = response_array(np.float32)
    advantage = response_array(np.float32)
    weight = response_array(np.float32)
    optional = jax.tree.map(response_array, dict(fields))
    for place in placements:
        sample = place.sample
        row = place.row
        responses = place.responses
        tokens[row, place.start : place.prompt_end] = sample.prompt_tokens
        tokens[row, place.prompt_end : place.end] = sample.response_tokens[:-1]
        # Each sample counts from 0 and has a segment of its own: packed or alone, it
        # is the same input.
        positions[row, place.start : place.end] = np.arange(sample.length)
        segment_ids[row, place.start : place.end] = place.segment
        # The last prompt token predicts the first response token.
        response_index[row, responses] = np.arange(place.prompt_end - 1, place.end)
        targets[row, responses] = sample.response_tokens
        behaviour[row, responses] = sample.logprobs
        advantage[row, responses] = sample.advantage
        weight[row, responses] = sample.weight
        # A field may be a pytree, such as `ValueTargets`: its leaves are written in their order.
        values = {name: sample.fields[name] for name in fields}
        for array, value in zip(jax.tree.leaves(optional), jax.tree.leaves(values), strict=True):
            array[row, responses] = value

    def stack(array: np.ndarray) -> np.ndarray:
        return array.reshape(shape.microbatches, shape.rows, -1)

    return StepBatch(
        tokens=stack(tokens),
        positions=stack(positions),
        segment_ids=stack(segment_ids),
        response_index=stack(response_index),
        targets=stack(targets),
        behaviour=stack(behaviour),
        advantage=stack(advantage),
        weight=stack(weight),
        # Data and not a shape: programs loop up to it, so its value compiles nothing anew.
        microbatches=np.int32(microbatches),
        **jax.tree.map(stack, optional),
    )
