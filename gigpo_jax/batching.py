"""Turns into training batches: samples packed into rows of fixed length, in minibatches of whole steps.

A sample is one environment step: a prompt and the response to it. Its `prompt + response` without the last token is the
model's input (nothing is predicted from the last token), so hidden state p predicts token p + 1 of the same sample.
Only response tokens carry loss, so what the loss needs is stored for response tokens alone (`[M, B, C]`, C much less
than T), and the vocabulary product runs over those positions only.

Shapes: M microbatches, B rows, T tokens in a row, C response tokens in a row, N environment steps.
"""

import bisect
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from gigpo_jax.env_bridge.similarity import similar_anchors
from gigpo_jax.env_bridge.types import anchor_hash
from gigpo_jax.errors import InputError
from gigpo_jax.models.attention import segment_limit
from gigpo_jax.models.images import Layout, PromptImages, distinct
from gigpo_jax.models.vision import pack_images
from gigpo_jax.rl.types import StepBatch, StepColumns, ValueTargets
from gigpo_jax.trajectory import Step

_DTYPES = {"action_mask": np.bool_, "clip_scale": np.float32, "teacher": np.float32}
_WORTH_WORKERS = 512  # steps; fewer are grouped faster than worker processes start
Join = Callable[[np.ndarray], np.ndarray]  # [k of this host, ...] -> [of all hosts, ...]; `partition.all_rows`
Agree = Callable[[np.ndarray], np.ndarray]  # [k] of this host -> [hosts, k]; `partition.all_hosts`


@dataclass(frozen=True)
class Sample:
    """One environment step as the learner sees it.

    Attributes:
      prompt_tokens: [P] i32, P >= 1.
      response_tokens: [R] i32, the exact tokens that were sampled.
      logprobs: [R] f32, nats; behaviour log-probabilities of the response tokens.
      advantage: of every response token, or [R] f32.
      weight: of every response token in the loss, or [R] f32, all above 0.
      action_mask: [R] bool, the response's action span; None: not needed.
      clip_scale: of every response token, the factor of the loss's clips.
      values: [R] each, what a critic learns; None: there is none.
      teacher: [R] f32, nats; see `StepBatch`. A number stands for any.
      images: of the prompt; None: it is of text alone.
    """

    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    logprobs: np.ndarray
    advantage: float | np.ndarray = 0.0
    weight: float | np.ndarray = 1.0
    action_mask: np.ndarray | None = None
    clip_scale: float = 1.0
    values: ValueTargets | None = None
    teacher: float | np.ndarray = 0.0
    images: PromptImages | None = None


def bucket(n: int) -> int:
    """The smallest of 256, 384, 512, 768, 1024, ... that is at least n."""
    size = 256
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def step_columns(
    steps: Sequence[Step],
    *,
    similarity: float | None = None,
    join: Join = lambda rows: rows,
    needs: Collection[str] = (),
    computed: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> StepColumns:
    """Collects what advantages are computed from.

    Args:
      steps: of finished episodes of this host, whole groups.
      similarity: anchor states of a task group count as one if they resemble each other at least this much
        (`env_bridge.similarity`, in row order); None: if they are equal.
      join: joins the rows of all hosts.
      needs: optional columns to collect from the steps, `action` and `next_anchor`; other names are passed over.
      computed: further optional columns by name, [k] for the k steps of this host.

    Returns:
      numpy arrays of bucketed length: a row a step, in the order of hosts and steps; padding is masked.
    """
    group = np.array([s.group for s in steps], np.int32)
    anchors = [s.turn.anchor for s in steps]
    if similarity is None:
        lanes = _hashes(anchors)
    else:
        workers = min(os.cpu_count() or 1, 16) if len(steps) >= _WORTH_WORKERS else 0
        lanes = similar_anchors(anchors, group, threshold=similarity, workers=workers)
    columns = {
        "reward": np.array([s.turn.reward for s in steps], np.float32),
        "penalty": np.array([s.turn.penalty for s in steps], np.float32),
        "trajectory": np.array([s.trajectory for s in steps], np.int32),
        "step": np.array([s.step for s in steps], np.int32),
        "group": group,
        "anchor": lanes,
    }
    if "action" in needs:
        columns["action"] = _hashes([s.turn.action for s in steps])
    if "next_anchor" in needs:
        columns["next_anchor"] = _next_rows(steps, lanes)
    columns |= computed
    joined = {name: join(column) for name, column in columns.items()}
    n = len(joined["group"])
    size = bucket(n)
    padded = {name: np.pad(x, ((0, size - n), *((0, 0),) * (x.ndim - 1))) for name, x in joined.items()}
    return StepColumns(**padded, mask=np.arange(size) < n)


def _hashes(texts: Sequence[str]) -> np.ndarray:
    return np.array([anchor_hash(text) for text in texts], np.uint32).reshape(-1, 2)


def _next_rows(steps: Sequence[Step], values: np.ndarray) -> np.ndarray:
    """For each step what `values` holds of the next step of its episode; zeros at a last step."""
    rows = {(s.trajectory, s.step): row for row, s in enumerate(steps)}
    after = [rows.get((s.trajectory, s.step + 1), len(steps)) for s in steps]
    return np.concatenate([values, np.zeros_like(values, shape=(1, *values.shape[1:]))])[after]


def value_columns(values: Sequence[np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Columns of a critic's values, by the names of `StepColumns`.

    Args:
      values: before each response token, one [R] f32 a step; the value of a step without tokens is 0.
      length: R of `token_value`, at least that of the longest response.
    """
    tokens = np.array([len(x) for x in values], np.int32)
    padded = np.zeros((len(values), length), np.float32)
    padded[np.arange(length) < tokens[:, None]] = np.concatenate([np.zeros(0, np.float32), *values])
    return {"value": padded[:, 0], "tokens": tokens, "token_value": padded}


def step_samples(steps: Sequence[Step], advantages: np.ndarray | None = None) -> list[Sample]:
    """One sample a step, with its advantage; `advantages` is [N] f32, None for zeros."""
    values = np.zeros(len(steps)) if advantages is None else advantages
    return [
        Sample(s.turn.prompt_tokens, s.turn.response_tokens, s.turn.logprobs, advantage, images=s.turn.images)
        for s, advantage in zip(steps, values.tolist(), strict=True)
    ]


def weighted_by_episode(samples: Sequence[Sample], steps: Sequence[Step], longest: int) -> list[Sample]:
    """Weighs tokens so that every episode counts the same, whatever its number of response tokens.

    Args:
      samples: of the steps.
      steps: of whole episodes of this host.
      longest: response tokens that no episode exceeds; the weights are at least 1.
    """
    tokens: Counter[int] = Counter()
    for step in steps:
        tokens[step.trajectory] += len(step.turn.response_tokens)
    weights = (longest / max(tokens[step.trajectory], 1) for step in steps)
    return [replace(x, weight=x.weight * weight) for x, weight in zip(samples, weights, strict=True)]


def split_steps(n: int, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffles n steps and deals them into parts whose sizes differ by at most one; every step is in exactly one."""
    return np.array_split(rng.permutation(n), parts)


def pack_rows(lengths: np.ndarray, responses: np.ndarray, row_length: int, response_length: int) -> list[list[int]]:
    """Best-fit decreasing: each sample, longest first, goes to the fullest row that still takes it.

    A row takes at most `segment_limit` samples.

    Args:
      lengths: [n] i, tokens of each sample; samples of length 0 are left out.
      responses: [n] i, how many of them carry loss.
      row_length: T.
      response_length: C.

    Returns:
      For each row the samples in it. The rows do not depend on anything but the arguments.

    Raises:
      InputError: a sample is longer than a row.
    """
    longest = int(lengths.max(initial=0))
    if longest > row_length:
        raise InputError(
            f"batch.row_length={row_length}: a sample has {longest} tokens; make it at least the longest prompt plus "
            "the longest response"
        )
    rows: list[list[int]] = []
    room: list[int] = []  # response tokens that still fit, for each row
    open_rows: list[tuple[int, int]] = []  # (free tokens, row), sorted: the fullest first
    for i in np.lexsort((np.arange(len(lengths)), -lengths)).tolist():
        length, response = int(lengths[i]), int(responses[i])
        if length == 0:
            continue
        at = bisect.bisect_left(open_rows, (length, -1))
        while at < len(open_rows) and room[open_rows[at][1]] < response:
            at += 1
        if at == len(open_rows):
            free, row = row_length, len(rows)
            rows.append([])
            room.append(response_length)
        else:
            free, row = open_rows.pop(at)
        rows[row].append(i)
        room[row] -= response
        if free > length and len(rows[row]) < segment_limit(row_length):
            bisect.insort(open_rows, (free - length, row))
    return rows


def response_capacity(tokens: int, responses: int, longest_response: int, row_length: int) -> int:
    """How many response tokens a row may hold: few sizes, so that few shapes compile, with a fifth to spare.

    Args:
      tokens: in all samples.
      responses: response tokens in all samples.
      longest_response: of one sample.
      row_length: T.
    """
    wanted = max(longest_response, 1.2 * row_length * responses / max(tokens, 1))
    sizes = [-(-row_length * eighths // 8) for eighths in (1, 2, 3, 4, 6, 8)]
    return next((size for size in sizes if size >= wanted), row_length)


def make_minibatches(samples: Sequence[Sample], **how: Any) -> list[StepBatch]:
    """All of `stream_minibatches` at once."""
    return list(stream_minibatches(samples, **how))


def stream_minibatches(
    samples: Sequence[Sample],
    *,
    steps: int,
    row_length: int,
    rows: int,
    rng: np.random.Generator,
    agree: Agree = lambda values: values[None],
    optional: Collection[str] = (),
) -> Iterator[StepBatch]:
    """Packs samples into minibatches of whole steps, every sample in exactly one.

    There are ceil(all steps / `steps`) minibatches of nearly equal size. All hosts get the same number of minibatches
    and of microbatches, and the same shapes; every host contributes its own `rows`.

    Args:
      samples: of this host.
      steps: environment steps in a minibatch, over all hosts.
      row_length: T.
      rows: B of this host.
      rng: shuffles the steps; one seed for a run and iteration gives the same minibatches.
      agree: gathers a [k] i64 array over hosts.
      optional: fields of both `Sample` and `StepBatch` that the minibatches have beside the required ones.

    Returns:
      Minibatches of host arrays, all of the same shapes; each is filled when its turn comes.

    Raises:
      InputError: a sample is longer than a row.
    """
    lengths = np.array([_length(s) for s in samples], np.int64)
    responses = np.array([len(s.response_tokens) for s in samples], np.int64)
    shown = any(sample.images is not None for sample in samples)
    totals = agree(np.array([len(samples), lengths.sum(), responses.sum(), responses.max(initial=0), shown], np.int64))
    count, tokens, response_tokens = totals[:, :3].sum(0).tolist()
    parts = split_steps(len(samples), max(1, -(-count // steps)), rng)
    capacity = response_capacity(tokens, response_tokens, int(totals[:, 3].max()), row_length)
    packed = [pack_rows(lengths[part], responses[part], row_length, capacity) for part in parts]
    used = agree(np.array([-(-len(p) // rows) for p in packed], np.int64)).max(0).tolist()
    stored = 4
    while stored < max(used):
        stored *= 4
    shape = (stored, rows, row_length, capacity)
    layouts = [[[samples[part[i]] for i in row] for row in layout] for part, layout in zip(parts, packed, strict=True)]
    batches = (_fill(layout, shape, max(n, 1), optional) for layout, n in zip(layouts, used, strict=True))
    return _with_images(layouts, batches, shape[:3], agree) if totals[:, 4].any() else batches


def images_stored(most: int, rows: int) -> int:
    """For how many images a microbatch of `rows` has room: a multiple of rows, as devices share them; few sizes."""
    number = rows
    while number < most:
        number *= 2
    return number


def _with_images(
    layouts: Sequence[list[list[Sample]]], batches: Iterator[StepBatch], shape: tuple[int, int, int], agree: Agree
) -> Iterator[StepBatch]:
    """The minibatches with the images of their samples, each distinct image once a microbatch, and their positions."""
    stored, rows, width = shape
    found = [
        [distinct([_images(s) for row in layout[m * rows : (m + 1) * rows] for s in row]) for m in range(stored)]
        for layout in layouts
    ]
    images = [each for batch in found for each, _ in batch]
    most, longest = max(map(len, images)), max((len(x.patches) for each in images for x in each), default=0)
    most, longest = agree(np.array([most, longest], np.int64)).max(0).tolist()
    number = images_stored(most, rows)
    for layout, batch, numbered in zip(layouts, batches, found, strict=True):
        positions, index = np.zeros((stored, rows, 3, width), np.int32), np.full((stored, rows, width), -1, np.int32)
        positions[:] = batch.positions[:, :, None]
        indices = (index for _, each in numbered for index in each)
        for r, members in enumerate(layout):
            at = 0
            for sample in members:
                placed, prompt, end = _images(sample).layout, len(sample.prompt_tokens), at + _length(sample)
                index[r // rows, r % rows, at : at + prompt] = next(indices)
                positions[r // rows, r % rows, :, at : at + prompt] = placed.positions
                positions[r // rows, r % rows, :, at + prompt : end] += placed.shift
                at = end
        packed = [pack_images(each, index[m], number=number, longest=longest) for m, (each, _) in enumerate(numbered)]
        joined = jax.tree.map(lambda *leaves: np.stack(leaves), *packed)
        yield replace(batch, positions=positions, images=joined)


def _images(sample: Sample) -> PromptImages:
    """The images of a sample; prompts of agent programs are of text alone."""
    length = len(sample.prompt_tokens)
    none = Layout(np.tile(np.arange(length, dtype=np.int32), (3, 1)), np.full(length, -1, np.int32), 0)
    return sample.images or PromptImages(none, ())


def packing_stats(batches: Sequence[StepBatch]) -> dict[str, float]:
    """Steps, tokens and the padding share of host minibatches; rows that are computed count, stored ones do not."""
    steps = tokens = computed = 0
    for batch in batches:
        segments = batch.segment_ids[: int(batch.microbatches)]
        steps += int(segments.max(-1).sum())
        tokens += int((segments > 0).sum())
        computed += segments.size
    return {"batch/steps": steps, "batch/tokens": tokens, "batch/padding_share": 1 - tokens / max(computed, 1)}


def _length(sample: Sample) -> int:
    # A response without tokens has nothing to learn from, so its step takes no room.
    return len(sample.prompt_tokens) + len(sample.response_tokens) - 1 if len(sample.response_tokens) else 0


def _fill(
    layout: list[list[Sample]], shape: tuple[int, int, int, int], microbatches: int, optional: Collection[str]
) -> StepBatch:
    """Writes rows of samples into arrays; `shape` is (M, B, T, C)."""
    stored, rows, width, capacity = shape
    tokens, positions, segments = (np.zeros((stored * rows, width), np.int32) for _ in range(3))
    index, targets = (np.zeros((stored * rows, capacity), np.int32) for _ in range(2))
    behaviour, advantage, weight = (np.zeros((stored * rows, capacity), np.float32) for _ in range(3))
    more: dict[str, np.ndarray] = {
        name: np.zeros((stored * rows, capacity), _DTYPES[name]) for name in optional if name in _DTYPES
    }
    values = [np.zeros((stored * rows, capacity), np.float32) for _ in ValueTargets._fields if "values" in optional]
    for r, members in enumerate(layout):
        at = response_at = 0
        for segment, sample in enumerate(members, start=1):
            prompt, response = len(sample.prompt_tokens), len(sample.response_tokens)
            here, responses = slice(at, at + prompt + response - 1), slice(response_at, response_at + response)
            tokens[r, at : at + prompt] = sample.prompt_tokens
            tokens[r, at + prompt : here.stop] = sample.response_tokens[:-1]
            positions[r, here] = np.arange(prompt + response - 1)
            segments[r, here] = segment
            index[r, responses] = np.arange(at + prompt - 1, here.stop)
            targets[r, responses] = sample.response_tokens
            behaviour[r, responses] = sample.logprobs
            advantage[r, responses] = sample.advantage
            weight[r, responses] = sample.weight
            for name, array in more.items():
                array[r, responses] = getattr(sample, name)
            for array, of_sample in zip(values, sample.values or (), strict=bool(values)):
                array[r, responses] = of_sample
            at, response_at = here.stop, responses.stop

    def stack(rows_of: np.ndarray) -> np.ndarray:
        return rows_of.reshape(stored, rows, -1)

    return StepBatch(
        tokens=stack(tokens),
        positions=stack(positions),
        segment_ids=stack(segments),
        response_index=stack(index),
        targets=stack(targets),
        behaviour=stack(behaviour),
        advantage=stack(advantage),
        weight=stack(weight),
        microbatches=np.int32(microbatches),
        **{name: stack(array) for name, array in more.items()},
        values=ValueTargets(*map(stack, values)) if values else None,
    )
