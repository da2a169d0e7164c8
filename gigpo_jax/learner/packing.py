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

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from gigpo_jax.learner.rows import (
    RowFit,
    TextPlacement,
    choose_shape,
    pack_rows,
    place_texts,
    response_capacity,
    row_lengths,
    rows_at_once,
)
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.learner.trees import Text, Tree, order_texts, separate_trees
from gigpo_jax.models.masks import segment_limit
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
      has_trees: whether texts of a segment share what they begin with.
    """

    microbatches: int
    rows: int
    tokens: int
    responses: int
    route_width: int
    route_bytes: int
    has_trees: bool


def deal_segments(
    segments: Sequence[np.ndarray], minibatches: int, rng: np.random.Generator | None
) -> list[list[np.ndarray]]:
    """Shuffles segments and deals them into minibatches.

    A segment with more steps than a minibatch is cut into pieces first. No minibatch is then empty,
    as long as there are enough steps, and its number of steps differs from the mean by at most the
    longest piece; with single steps by less than one step.

    Args:
      segments: indices of the samples of each segment.
      minibatches: number of minibatches.
      rng: generator that shuffles the segments; None: their order stays.
    """
    steps = sum(map(len, segments))
    longest = _longest_piece(steps, minibatches)
    pieces = [piece for segment in segments for piece in _cut_segment(segment, longest)]
    order = _shuffle(len(pieces), rng)
    sizes = np.array([len(pieces[piece]) for piece in order], np.int64)
    # A piece is in the minibatch that its middle step would be in if single steps were dealt.
    middles = np.cumsum(sizes) - sizes + (sizes - 1) // 2
    edges = np.cumsum([len(share) for share in np.array_split(np.arange(steps), minibatches)])
    members = np.split(np.array(order, np.int64), np.searchsorted(middles, edges[:-1]))
    return [[pieces[piece] for piece in share.tolist()] for share in members]


def deal_groups(
    groups: Sequence[Sequence[np.ndarray]], minibatches: int, rng: np.random.Generator | None
) -> list[list[np.ndarray]]:
    """Deals task groups into minibatches of nearly equal size.

    The largest group comes first, and each goes to the minibatch with the fewest steps. From a
    group with more steps than a minibatch, pieces as large as a minibatch are cut off first.

    Args:
      groups: segments of each group, as indices of their samples.
      minibatches: number of minibatches; none is empty if there are enough steps.
      rng: generator that shuffles equal groups, and the minibatches; None: their order stays.
    """
    longest = _longest_piece(sum(map(_count_steps, groups)), minibatches)
    pieces: list[list[np.ndarray]] = []
    for group in groups:
        room = 0
        for segment in group:
            for part in _cut_segment(segment, longest):
                if len(part) > room:
                    pieces.append([])
                    room = longest
                pieces[-1].append(part)
                room -= len(part)
    shuffled = [pieces[piece] for piece in _shuffle(len(pieces), rng)]
    dealt: list[list[np.ndarray]] = [[] for _ in range(minibatches)]
    counts = [0] * minibatches
    for piece in sorted(shuffled, key=_count_steps, reverse=True):
        fewest = counts.index(min(counts))
        dealt[fewest] += piece
        counts[fewest] += _count_steps(piece)
    # Otherwise the first update would always have the largest group.
    return [dealt[minibatch] for minibatch in _shuffle(minibatches, rng)]


def _shuffle(count: int, rng: np.random.Generator | None) -> list[int]:
    """Numbers below `count`, shuffled if there is a generator."""
    return list(range(count)) if rng is None else rng.permutation(count).tolist()


def _longest_piece(steps: int, minibatches: int) -> int:
    # With longer pieces a minibatch could stay empty.
    return max(steps // minibatches, 1)


def _cut_segment(segment: np.ndarray, longest: int) -> list[np.ndarray]:
    """Nearly equal pieces of at most `longest` steps."""
    return np.array_split(segment, -(-len(segment) // longest))


def _count_steps(segments: Sequence[np.ndarray]) -> int:
    return sum(map(len, segments))


def make_minibatches(
    samples: Sequence[Sample],
    *,
    steps: int,
    row_length: int,
    rows: int,
    rng: np.random.Generator | None,
    gather: Gather = lambda values: values[None],
    fields: Mapping[str, Any] = NO_FIELDS,
    longest: int = 0,
    longest_tree: int = 0,
    groups: Sequence[int] | None = None,
    fit: RowFit | None = None,
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
        longest_tree=longest_tree,
        groups=groups,
        fit=fit,
    )
    return list(batches)


def stream_minibatches(
    samples: Sequence[Sample],
    *,
    steps: int,
    row_length: int,
    rows: int,
    rng: np.random.Generator | None,
    gather: Gather = lambda values: values[None],
    fields: Mapping[str, Any] = NO_FIELDS,
    longest: int = 0,
    longest_tree: int = 0,
    groups: Sequence[int] | None = None,
    fit: RowFit | None = None,
) -> Iterator[StepBatch]:
    """Packs samples into minibatches of whole steps.

    Every sample is in exactly one. There are ceil(all steps / `steps`) minibatches of nearly equal
    size. Samples that continue each other stay together, up to the steps of a minibatch, and so do
    task groups if they are given. All hosts get the same number of
    minibatches and of microbatches, and the same shapes; every host contributes its own `rows`.

    Args:
      samples: samples of this host; one that continues another one stands directly behind it.
      steps: environment steps in a minibatch, over all hosts.
      row_length: T.
      rows: B of this host.
      rng: generator that shuffles segments or groups; one seed for a run and iteration gives the
        same minibatches. None: they are dealt in the order of their tokens.
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
      Minibatches of host arrays, all of the same shapes; each is filled when its turn comes.

    Raises:
      InputError: a sample is longer than a row.
    """
    segments = join_continuations(samples)
    texts = _texts_of(samples, segments)
    # Of whole segments, also where some are cut below: pieces have fewer responses a token.
    trees = separate_trees(texts)
    responses = [tree.responses for tree in trees]
    has_images = any(sample.images is not None for sample in samples)
    sample_routes = [sample.routes for sample in samples if sample.routes is not None]
    local_numbers = [
        len(samples),
        sum(tree.length for tree in trees),
        sum(responses),
        max(responses, default=0),
        has_images,
        max((tree.length for tree in trees), default=0),
        *max(((routes.shape[1], routes.itemsize) for routes in sample_routes), default=(0, 0)),
    ]
    # Totals over all hosts decide the shapes: each host has to compile and run the same programs.
    numbers = gather(np.array(local_numbers, np.int64))
    all_steps, all_tokens, all_responses = numbers[:, :3].sum(0).tolist()
    longest_response = int(numbers[:, 3].max())
    has_images = bool(numbers[:, 4].any())
    route_width, route_bytes = numbers[:, 6:].max(0).tolist()
    # A tree has one array of images and of experts for what its texts share.
    has_trees = longest_tree > 0 and not has_images and not route_width
    if rng is None:
        order = order_texts([[samples[i] for i in members] for members in segments])
        segments = [segments[index] for index in order]

    count = max(1, -(-all_steps // steps))
    # Steps are dealt before they are packed: a minibatch has whole steps, however long they are.
    if groups is None:
        dealt = deal_segments(segments, count, rng)
    else:
        dealt = deal_groups(_join_groups(samples, segments, groups), count, rng)
    minibatches = [_texts_of(samples, members) for members in dealt]
    grow: Callable[[Sequence[Text], int, int], list[Tree]] | None = None
    if has_trees:
        from gigpo_jax.learner.shared_prefixes import count_distinct_tokens, grow_trees

        grow = grow_trees
        distinct_tokens = sum(map(count_distinct_tokens, minibatches))
        all_tokens = int(gather(np.array([distinct_tokens], np.int64)).sum())

    def pack(length: int) -> _Packing:
        capacity = response_capacity(all_tokens, all_responses, longest_response, length)
        trees = [
            grow(texts, longest_tree, capacity) if grow else separate_trees(texts)
            for texts in minibatches
        ]
        return _pack_trees(trees, length, capacity, gather)

    packing = pack(row_length)
    if fit is not None and not has_images and not has_trees:
        shapes = [(row_length, rows)]
        packings = [packing]
        lengths = row_lengths(int(numbers[:, 5].max()), row_length)
        packings += [packing if length == row_length else pack(length) for length in lengths]
        shapes += [
            (length, rows_at_once(fit, length, int(fitted.row_counts.max())))
            for length, fitted in zip(lengths, packings[1:], strict=True)
        ]
        chosen = choose_shape(shapes, np.stack([fitted.row_counts for fitted in packings]))
        packing = packings[chosen]
        row_length, rows = shapes[chosen]
    counts = (-(-packing.row_counts // rows)).tolist()
    needed = max(counts)
    if longest and not has_images:
        needed = max(needed, most_microbatches(steps, len(numbers), longest, row_length, rows))
    stored = stored_microbatches(needed)
    shape = BatchShape(
        stored, rows, row_length, packing.capacity, route_width, route_bytes, has_trees
    )
    # A generator: supervised training fills one minibatch at a time.
    batches = (
        _fill_batch(places, shape, max(count, 1), fields)
        for places, count in zip(packing.placements, counts, strict=True)
    )
    if has_images:
        from gigpo_jax.learner.packed_images import add_images

        return add_images(batches, packing.placements, shape[:3], gather)
    return batches


class _Packing(NamedTuple):
    """Minibatches packed into rows of one length.

    Attributes:
      placements: places of the texts of each minibatch.
      row_counts: [minibatches] i64, rows of each on the host with the most.
      capacity: C.
    """

    placements: list[list[TextPlacement]]
    row_counts: np.ndarray
    capacity: int


def _pack_trees(
    minibatches: Sequence[Sequence[Tree]], row_length: int, capacity: int, gather: Gather
) -> _Packing:
    """Packs the trees of each minibatch into rows of T = `row_length` tokens."""
    placements = []
    row_counts = []
    for trees in minibatches:
        lengths = np.array([tree.length for tree in trees], np.int64)
        losses = np.array([tree.responses for tree in trees], np.int64)
        packed_rows = pack_rows(lengths, losses, row_length, capacity)
        placements.append(place_texts(trees, packed_rows))
        row_counts.append(len(packed_rows))
    # The fullest host decides: one with fewer microbatches would leave the others waiting in a
    # collective operation for ever.
    return _Packing(placements, gather(np.array(row_counts, np.int64)).max(0), capacity)


def _join_groups(
    samples: Sequence[Sample], segments: Sequence[np.ndarray], groups: Sequence[int]
) -> list[list[np.ndarray]]:
    """Collects the segments of each task group, in the order of their tokens."""
    units: dict[int, list[np.ndarray]] = {}
    # The steps of a piece are then neighbours, which share most.
    for index in order_texts([[samples[i] for i in members] for members in segments]):
        segment = segments[index]
        units.setdefault(groups[segment[0]], []).append(segment)
    return list(units.values())


def _texts_of(samples: Sequence[Sample], segments: Sequence[np.ndarray]) -> list[list[Sample]]:
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


def _fill_batch(
    placements: Sequence[TextPlacement],
    shape: BatchShape,
    microbatches: int,
    fields: Mapping[str, Any],
) -> StepBatch:
    """Writes placed texts into arrays, of which the first `microbatches` are computed."""
    rows = shape.microbatches * shape.rows

    def token_array() -> np.ndarray:
        return np.zeros((rows, shape.tokens), np.int32)

    def response_array(dtype: Any) -> np.ndarray:
        return np.zeros((rows, shape.responses), dtype)

    tokens = token_array()
    positions = token_array()
    segment_ids = np.zeros((rows, 1 + shape.has_trees, shape.tokens), np.int32)
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
    for text in placements:
        row = text.row
        whole = text.whole
        places = text.places
        tokens[row, text.prompt_places] = whole.prompt_tokens
        tokens[row, text.response_places] = whole.response_tokens[:-1]
        # Each text counts from 0 and each segment has a number of its own: packed or alone, it
        # is the same input.
        positions[row, places] = np.arange(whole.length)
        segment_ids[row, 0, places] = text.segment
        if shape.has_trees:
            # What a text shares with later ones ends where the last of them does.
            segment_ids[row, 1, places] = places[-1] + 1
        if routes is not None:
            # Earlier steps last: a token keeps the experts with which it was sampled, also where
            # a later step read it again.
            for sample, _, _ in reversed(text.responses):
                assert sample.routes is not None, "experts are given for some samples only"
                routes[row, places[: sample.length]] = sample.routes
        for sample, number, columns in text.responses:
            # The last prompt token predicts the first response token.
            response_index[row, columns] = places[len(sample.prompt_tokens) - 1 : sample.length]
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
    if not shape.has_trees:
        segment_ids = segment_ids[:, 0]

    def stack(array: np.ndarray) -> np.ndarray:
        # A field may have several numbers a token.
        return array.reshape(shape.microbatches, shape.rows, *array.shape[1:])

    return StepBatch(
        tokens=stack(tokens),
        positions=stack(positions),
        segment_ids=segment_ids.reshape(*token_shape[:2], *segment_ids.shape[1:]),
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
