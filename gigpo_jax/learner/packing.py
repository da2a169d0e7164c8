"""Samples -> minibatches of whole steps, packed into rows of fixed length.

A sample is one environment step: a prompt and the response to it. Its `prompt + response` without
the last token is the model's input (nothing is predicted from the last token), so hidden state p
predicts token p + 1 of the same sample. Only response tokens carry loss, so what the loss needs is
stored for response tokens alone (`[M, B, C]`, C less than T), and the vocabulary product runs over
those positions only.

Samples of which each continues the one before, as in a conversation, share a segment: the text of
the last one, with the loss of all responses. A model is causal, so this is exact; n steps then cost
the tokens of the last one. Texts that begin alike may share a segment too (`learner.trees`).

Shapes: M microbatches, B rows, T tokens in a row, C response tokens in a row, N environment steps.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gigpo_jax.learner.dealing import deal_segments
from gigpo_jax.learner.filling import BatchShape, fill_batch
from gigpo_jax.learner.rows import (
    Rows,
    Segment,
    TextPlacement,
    pack_rows,
    place_texts,
    response_capacity,
    separate_texts,
)
from gigpo_jax.learner.samples import Sample, Text, join_continuations
from gigpo_jax.models.masks import segment_limit
from gigpo_jax.rl.types import StepBatch

if TYPE_CHECKING:
    from gigpo_jax.learner.fitted_rows import RowFit

# [k] of this host -> [hosts, k], as `exchange.all_hosts`
Gather = Callable[[np.ndarray], np.ndarray]


def make_minibatches(samples: Sequence[Sample], **settings: Any) -> list[StepBatch]:
    """All minibatches at once; arguments as for `stream_minibatches`."""
    return list(stream_minibatches(samples, **settings))


def stream_minibatches(
    samples: Sequence[Sample],
    *,
    steps: int,
    row_length: int,
    rows: int,
    rng: np.random.Generator | None,
    gather: Gather = lambda values: values[None],
    fields: Mapping[str, Any] | None = None,
    longest: int = 0,
    longest_tree: int = 0,
    groups: Sequence[int] | None = None,
    fit: "RowFit | None" = None,
) -> Iterator[StepBatch]:
    """Packs samples into minibatches of whole steps.

    Every sample is in exactly one of ceil(all steps / `steps`) minibatches of nearly equal size.
    Samples that continue each other stay together, up to the steps of a minibatch. All hosts get
    the same number of minibatches and of microbatches, and the same shapes.

    Args:
      samples: samples of this host; one that continues another one stands directly behind it.
      steps: environment steps in a minibatch, over all hosts.
      row_length: T.
      rows: B of this host.
      rng: generator that shuffles segments or groups; None: they are dealt in the order of their
        tokens.
      gather: function that gathers [k] i64 of every host, [hosts, k].
      fields: dtype of each optional field of `StepBatch` that the samples have, or a pytree of
        dtypes.
      longest: tokens of the longest sample that the run can have; then batches without images have
        room for `steps` of these, whatever the samples, and one program is enough. 0: not known.
      longest_tree: largest number of tokens of texts that share what they begin with; 0: none do.
        Nor do texts with images or with experts given.
      groups: task group of each sample; the steps of a group stay together, up to `steps` of them.
        None: single segments are dealt.
      fit: limits of rows whose shape follows the samples, where that saves much; `row_length` is
        then the largest length. None: all rows have `row_length`. No effect with images and trees.

    Returns:
      Minibatches of host arrays, each filled when its turn comes.

    Raises:
      InputError: a sample is longer than a row.
    """
    segments = join_continuations(samples)
    # Of whole segments, also where some are cut below: pieces have fewer responses a token.
    totals = _gather_totals(samples, separate_texts(_texts_of(samples, segments)), gather)
    if totals.has_images or totals.route_width:
        # A tree has one array of images and of experts for what its texts share.
        longest_tree = 0
    count = max(1, -(-totals.steps // steps))
    minibatches = _deal_texts(samples, segments, groups, count, rng)
    if longest_tree:
        from gigpo_jax.learner.shared_prefixes import count_distinct_tokens

        distinct_tokens = sum(map(count_distinct_tokens, minibatches))
        all_tokens = gather(np.array([distinct_tokens], np.int64)).sum()
        totals = totals._replace(tokens=int(all_tokens))

    pack = functools.partial(_pack_texts, minibatches, longest_tree, totals, gather)
    packing = pack(row_length)
    if fit is not None and not totals.has_images and not longest_tree:
        from gigpo_jax.learner.fitted_rows import fit_packing

        packing, rows = fit_packing(pack, packing, rows, totals.longest_text, fit, gather)
    microbatch_counts = (-(-packing.row_counts // rows)).tolist()
    needed = max(microbatch_counts)
    if longest and not totals.has_images:
        needed = max(needed, most_microbatches(steps, totals.hosts, longest, packing.length, rows))
    shape = BatchShape(
        microbatches=stored_microbatches(needed),
        rows=rows,
        tokens=packing.length,
        responses=packing.capacity,
        route_width=totals.route_width,
        route_bytes=totals.route_bytes,
        has_trees=longest_tree > 0,
    )
    # A generator: supervised training fills one minibatch at a time.
    batches = (
        fill_batch(places, shape, max(microbatches, 1), fields or {})
        for places, microbatches in zip(packing.placements, microbatch_counts, strict=True)
    )
    if totals.has_images:
        from gigpo_jax.learner.packed_images import add_images

        return add_images(batches, packing.placements, shape[:3], gather)
    return batches


class _Totals(NamedTuple):
    """Numbers of the samples of all hosts, which decide the shapes of minibatches.

    `tokens` and `longest_text` count tokens of texts, `responses` and `longest_response` tokens of
    their responses; `route_width` and `route_bytes` are as in `BatchShape`.
    """

    hosts: int
    steps: int
    tokens: int
    responses: int
    longest_response: int
    longest_text: int
    has_images: bool
    route_width: int
    route_bytes: int


def _gather_totals(
    samples: Sequence[Sample], segments: Sequence[Segment], gather: Gather
) -> _Totals:
    """Adds up the numbers of all hosts: each has to compile and run the same programs."""
    responses = [segment.responses for segment in segments]
    routes = [sample.routes for sample in samples if sample.routes is not None]
    local_sums = [len(samples), sum(segment.length for segment in segments), sum(responses)]
    local_largest = [
        max(responses, default=0),
        max((segment.length for segment in segments), default=0),
        any(sample.images is not None for sample in samples),
        *max(((array.shape[1], array.itemsize) for array in routes), default=(0, 0)),
    ]
    numbers = gather(np.array(local_sums + local_largest, np.int64))
    all_steps, all_tokens, all_responses = numbers[:, :3].sum(0).tolist()
    longest_response, longest_text, has_images, width, route_bytes = numbers[:, 3:].max(0).tolist()
    return _Totals(
        hosts=len(numbers),
        steps=all_steps,
        tokens=all_tokens,
        responses=all_responses,
        longest_response=longest_response,
        longest_text=longest_text,
        has_images=bool(has_images),
        route_width=width,
        route_bytes=route_bytes,
    )


class Packing(NamedTuple):
    """Minibatches packed into rows of one length.

    Attributes:
      length: T.
      placements: places of the texts of each minibatch.
      row_counts: [minibatches] i64, rows of each on the host with the most.
      capacity: C.
    """

    length: int
    placements: list[list[TextPlacement]]
    row_counts: np.ndarray
    capacity: int


def _pack_texts(
    minibatches: Sequence[Sequence[Text]],
    longest_tree: int,
    totals: _Totals,
    gather: Gather,
    length: int,
    pack_segments: Callable[..., Rows] = pack_rows,
) -> Packing:
    """Packs the texts of each minibatch into rows of T = `length` tokens."""
    capacity = response_capacity(totals.tokens, totals.responses, totals.longest_response, length)
    if longest_tree:
        from gigpo_jax.learner.shared_prefixes import grow_trees
    placements = []
    local_counts = []
    for texts in minibatches:
        if longest_tree:
            segments = [tree.as_segment() for tree in grow_trees(texts, longest_tree, capacity)]
        else:
            segments = separate_texts(texts)
        lengths = np.array([segment.length for segment in segments], np.int64)
        losses = np.array([segment.responses for segment in segments], np.int64)
        packed_rows = pack_segments(lengths, losses, length, capacity)
        placements.append(place_texts(segments, packed_rows))
        local_counts.append(len(packed_rows))
    # The fullest host decides: one with fewer microbatches would leave the others waiting in a
    # collective operation for ever.
    row_counts = gather(np.array(local_counts, np.int64)).max(0)
    return Packing(length, placements, row_counts, capacity)


def _deal_texts(
    samples: Sequence[Sample],
    segments: Sequence[np.ndarray],
    groups: Sequence[int] | None,
    count: int,
    rng: np.random.Generator | None,
) -> list[list[Text]]:
    """Deals texts into `count` minibatches of whole steps, however long these are."""
    if groups is None and rng is not None:
        dealt = deal_segments(segments, count, rng)
    else:
        from gigpo_jax.learner.group_dealing import deal_ordered

        dealt = deal_ordered(samples, segments, groups, count, rng)
    return [_texts_of(samples, members) for members in dealt]


def _texts_of(samples: Sequence[Sample], segments: Sequence[np.ndarray]) -> list[Text]:
    """Returns the samples of each text, without samples that have no response to learn from."""
    texts = ([samples[i] for i in members if samples[i].length] for members in segments)
    return [text for text in texts if text]


def most_microbatches(steps: int, hosts: int, longest: int, row_length: int, rows: int) -> int:
    """Microbatches of a host if all samples had `longest` tokens."""
    row_samples = max(1, min(row_length // longest, segment_limit(row_length)))
    return -(-steps // (hosts * row_samples * rows))


def stored_microbatches(needed: int) -> int:
    """Returns M for a minibatch that needs so many microbatches.

    The rows from `StepBatch.microbatches` on are stored and not computed.
    """
    # Powers of four: minibatches of all iterations have few shapes, and few programs compile.
    stored = 4
    while stored < needed:
        stored *= 4
    return stored


def packing_stats(batches: Sequence[StepBatch]) -> dict[str, float]:
    """Returns steps, tokens and the padding share of a host's minibatches, over computed rows."""
    steps = 0
    tokens = 0
    computed = 0
    for batch in batches:
        # The responses of a row are numbered from 1; one response a step.
        steps += int(batch.responses.max(-1).sum())
        tokens += int(microbatch_tokens(batch).sum())
        computed += int(batch.microbatches) * batch.tokens[0].size
    return {
        "batch/steps": steps,
        "batch/tokens": tokens,
        "batch/padding_share": 1 - tokens / max(computed, 1),
    }


def microbatch_tokens(batch: StepBatch) -> np.ndarray:
    """Counts the tokens of each computed microbatch of a host's minibatch."""
    segments = batch.segment_ids[: int(batch.microbatches)]
    if segments.ndim == 4:
        segments = segments[:, :, 0]
    return (segments > 0).sum((1, 2))
