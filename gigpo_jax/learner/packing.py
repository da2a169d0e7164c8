"""Samples -> minibatches of whole steps, packed into rows of fixed length.

A sample is one environment step: a prompt and the response to it. Its `prompt + response` without
the last token is the model's input (nothing is predicted from the last token), so hidden state p
predicts token p + 1 of the same sample. Only response tokens carry loss, so what the loss needs is
stored for response tokens alone (`[M, B, C]`, C less than T), and the vocabulary product runs over
those positions only.

Samples of which each continues the one before, as in a conversation, share a segment: the text of
the last one, with the loss of all responses. A model is causal, so this is exact; n steps then cost
the tokens of the last one.

Shapes: M microbatches, B rows, T tokens in a row, C response tokens in a row, N environment steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from gigpo_jax.learner.packed_images import add_images
from gigpo_jax.learner.rows import (
    SegmentPlacement,
    pack_rows,
    place_segments,
    response_capacity,
    segment_sizes,
)
from gigpo_jax.learner.samples import Sample, join_continuations
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
      route_width: experts that a token goes through in all layers; 0: they are not given.
      route_bytes: bytes of the number of an expert.
    """

    microbatches: int
    rows: int
    tokens: int
    responses: int
    route_width: int
    route_bytes: int


def deal_segments(
    segments: Sequence[np.ndarray], groups: int, rng: np.random.Generator
) -> list[list[np.ndarray]]:
    """Shuffles segments and deals them into groups.

    A segment with more steps than a group is cut into pieces first. No group is then empty, as long
    as there are enough steps, and its number of steps differs from the mean by at most the largest
    piece; without continuations by less than one step.

    Args:
      segments: indices of the samples of each segment.
      groups: number of groups.
      rng: generator that shuffles the segments.
    """
    steps = sum(map(len, segments))
    # With longer pieces a group could stay empty.
    longest = max(steps // groups, 1)
    pieces = []
    for segment in segments:
        pieces += np.array_split(segment, -(-len(segment) // longest))
    order = rng.permutation(len(pieces))
    sizes = np.array([len(pieces[piece]) for piece in order.tolist()], np.int64)
    # A piece is in the group that its middle step would be in if single steps were dealt.
    middles = np.cumsum(sizes) - sizes + (sizes - 1) // 2
    edges = np.cumsum([len(group) for group in np.array_split(np.arange(steps), groups)])
    members = np.split(order, np.searchsorted(middles, edges[:-1]))
    return [[pieces[piece] for piece in group.tolist()] for group in members]


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
    size. Samples that continue each other stay together, up to the steps of a minibatch
    (`deal_segments`). All hosts get the same number of minibatches and of microbatches, and the
    same shapes; every host contributes its own `rows`.

    Args:
      samples: samples of this host; one that continues another one stands directly behind it.
      steps: environment steps in a minibatch, over all hosts.
      row_length: T.
      rows: B of this host.
      rng: generator that shuffles the segments; one seed for a run and iteration gives the same
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
    segments = join_continuations(samples)
    # Of whole segments, also where some are cut below: pieces have fewer responses a token.
    lengths, responses = segment_sizes([[samples[i] for i in members] for members in segments])
    has_images = any(sample.images is not None for sample in samples)
    sample_routes = [sample.routes for sample in samples if sample.routes is not None]
    local_numbers = [
        len(samples),
        lengths.sum(),
        responses.sum(),
        responses.max(initial=0),
        has_images,
        *max(((routes.shape[1], routes.itemsize) for routes in sample_routes), default=(0, 0)),
    ]
    # Totals over all hosts decide the shapes: each host has to compile and run the same programs.
    numbers = gather(np.array(local_numbers, np.int64))
    all_steps, all_tokens, all_responses = numbers[:, :3].sum(0).tolist()
    longest_response = int(numbers[:, 3].max())
    capacity = response_capacity(all_tokens, all_responses, longest_response, row_length)

    # Steps are dealt before they are packed: a minibatch has whole steps, however long they are.
    minibatches = deal_segments(segments, max(1, -(-all_steps // steps)), rng)
    placements = []
    local_counts = []
    for group in minibatches:
        texts = [[samples[i] for i in members] for members in group]
        packed_rows = pack_rows(*segment_sizes(texts), row_length, capacity)
        placements.append(place_segments(texts, packed_rows))
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
    route_width, route_bytes = numbers[:, 5:].max(0).tolist()
    shape = BatchShape(stored, rows, row_length, capacity, route_width, route_bytes)
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
        # The responses of a row are numbered from 1; one response a step.
        steps += int(batch.responses.max(-1).sum())
        tokens += int((segments > 0).sum())
        computed += segments.size
    return {
        "batch/steps": steps,
        "batch/tokens": tokens,
        "batch/padding_share": 1 - tokens / max(computed, 1),
    }


def _fill_batch(
    placements: Sequence[SegmentPlacement],
    shape: BatchShape,
    microbatches: int,
    fields: Mapping[str, Any],
) -> StepBatch:
    """Writes placed segments into arrays.

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
    responses = response_array(np.int32)
    targets = response_array(np.int32)
    behaviour = response_array(np.float32)
    advantage = response_array(np.float32)
    weight = response_array(np.float32)
    optional = jax.tree.map(response_array, dict(fields))
    routes = None
    if shape.route_width:
        routes = np.zeros((rows, shape.tokens, shape.route_width), f"u{shape.route_bytes}")
    for segment in placements:
        row = segment.row
        whole = segment.whole
        tokens[row, segment.start : segment.prompt_end] = whole.prompt_tokens
        tokens[row, segment.prompt_end : segment.end] = whole.response_tokens[:-1]
        # Each segment counts from 0 and has a number of its own: packed or alone, it
        # is the same input.
        positions[row, segment.start : segment.end] = np.arange(whole.length)
        segment_ids[row, segment.start : segment.end] = segment.number
        if routes is not None:
            # Earlier steps last: a token keeps the experts with which it was sampled, also where
            # a later step read it again.
            for sample, _, _ in reversed(segment.responses):
                assert sample.routes is not None, "experts are given for some samples only"
                routes[row, segment.start : segment.start + sample.length] = sample.routes
        for sample, number, columns in segment.responses:
            # The last prompt token predicts the first response token.
            first = segment.start + len(sample.prompt_tokens) - 1
            end = segment.start + sample.length
            response_index[row, columns] = np.arange(first, end)
            responses[row, columns] = number
            targets[row, columns] = sample.response_tokens
            behaviour[row, columns] = sample.logprobs
            advantage[row, columns] = sample.advantage
            weight[row, columns] = sample.weight
            # A field may be a pytree, such as `ValueTargets`: its leaves are written in their
            # order.
            values = jax.tree.leaves({name: sample.fields[name] for name in fields})
            for array, value in zip(jax.tree.leaves(optional), values, strict=True):
                array[row, columns] = value

    token_shape = (shape.microbatches, shape.rows, shape.tokens)

    def stack(array: np.ndarray) -> np.ndarray:
        return array.reshape(shape.microbatches, shape.rows, -1)

    return StepBatch(
        tokens=stack(tokens),
        positions=stack(positions),
        segment_ids=stack(segment_ids),
        response_index=stack(response_index),
        responses=stack(responses),
        targets=stack(targets),
        behaviour=stack(behaviour),
        advantage=stack(advantage),
        weight=stack(weight),
        # Data and not a shape: programs loop up to it, so its value compiles nothing anew.
        microbatches=np.int32(microbatches),
        routes=None if routes is None else routes.reshape(*token_shape, -1),
        **jax.tree.map(stack, optional),
    )
