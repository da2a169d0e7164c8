"""The columns that advantages are computed from: a row for each environment step or text."""

from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import numpy as np

from gigpo_jax.env_bridge.types import anchor_hash
from gigpo_jax.rl.types import StepColumns, collect_columns
from gigpo_jax.trajectory import Step

# [k of this host, ...] -> [k of all hosts, ...], as `exchange.all_rows`
JoinRows = Callable[[np.ndarray], np.ndarray]


def bucket(n: int) -> int:
    """Returns the smallest length of 256, 384, 512, 768, 1024, ... that is at least n."""
    # Two sizes in each power of two: few programs compile, and padding is at most a third.
    size = 256
    while size < n:
        is_power_of_two = size & (size - 1) == 0
        size = size * 3 // 2 if is_power_of_two else size * 4 // 3
    return size


def neighbour_buckets(size: int, most_steps: int) -> list[int]:
    """Column lengths of iterations with somewhat fewer or more steps, of at most `most_steps`."""
    # The next smaller length is the bucket of a little more than half the steps.
    smaller = bucket(size // 2 + 1)
    larger = bucket(size + 1)
    sizes = [smaller] if smaller < size else []
    return [*sizes, larger] if larger <= bucket(most_steps) else sizes


def resize_columns(columns: StepColumns, size: int) -> StepColumns:
    """Cuts columns to a length, or pads them with masked rows."""
    return jax.tree.map(lambda column: _pad_rows(column[:size], size), columns)


def _hash_texts(texts: Sequence[str]) -> np.ndarray:
    return np.array([anchor_hash(text) for text in texts], np.uint32).reshape(-1, 2)


def step_columns(
    steps: Sequence[Step],
    *,
    similarity: float | None = None,
    join: JoinRows = lambda rows: rows,
    needs: Collection[str] = (),
    computed: Mapping[str, np.ndarray] | None = None,
) -> StepColumns:
    """Collects the columns of steps, a row a step in the order of hosts, of bucketed length.

    Args:
      steps: steps of finished episodes of this host, whole groups.
      similarity: lowest similarity of two anchor states of a task group that count as one
        (`learner.similarity`, in row order); None: only equal states count as one.
      join: function that joins the rows of all hosts.
      needs: names of optional columns; `needed_columns` collects what steps themselves give.
      computed: further optional columns by name, [k] for the k steps of this host.
    """
    group = np.array([s.episode.group for s in steps], np.int32)
    anchors = [s.turn.anchor for s in steps]
    if similarity is None:
        anchor_lanes = _hash_texts(anchors)
    else:
        from gigpo_jax.learner.similarity import similar_anchors

        # A text has the state of its step in its anchor, and is nothing like the step.
        kinds = 2 * group.astype(np.int64) + [s.turn.is_text for s in steps]
        anchor_lanes = similar_anchors(anchors, kinds, threshold=similarity)
    columns = {
        "reward": np.array([s.turn.reward for s in steps], np.float32),
        "penalty": np.array([s.turn.penalty for s in steps], np.float32),
        # Counted on each host: over several hosts only the pair of group and
        # trajectory is distinct.
        "trajectory": np.array([s.trajectory for s in steps], np.int32),
        "step": np.array([s.step for s in steps], np.int32),
        "group": group,
        "anchor": anchor_lanes,
    }
    if needs:
        from gigpo_jax.learner.needed_columns import needed_columns

        columns |= needed_columns(steps, needs, anchor_lanes, _hash_texts)
    columns |= computed or {}
    # After the computed columns: every column needs the rows of all hosts.
    columns = {name: join(column) for name, column in columns.items()}
    n = len(columns["group"])
    size = bucket(n)  # few sizes, so that few shapes compile
    padded = {name: _pad_rows(column, size) for name, column in columns.items()}
    return collect_columns(**padded, mask=np.arange(size) < n)


def _pad_rows(column: np.ndarray, size: int) -> np.ndarray:
    padded = np.zeros((size, *column.shape[1:]), column.dtype)
    padded[: len(column)] = column
    return padded
