"""A critic that reads text, on the host: logistic regression of the return on the words of a state.

Ours, not published. A state is the set of the words of its anchor text, with its task type and how many steps are left.
A word that the task names is replaced by its place in the task, so that what is learnt of one task's object holds for
others. Features f are the words and all pairs of them, hashed. With y the sum of rewards minus penalties over the
remaining steps, scaled by the least and the largest that were seen,

    V(s) = least + (largest - least) sigmoid(b + sum of w_f over the features of s)

minimises the cross-entropy to y plus an L2 penalty over the episodes of the last iterations. An iteration is judged
before it is learnt from. No tokens are generated, and no gradient reaches the policy.
"""

import base64
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse

from gigpo_jax.batching import Join
from gigpo_jax.env_bridge.types import anchor_hash
from gigpo_jax.trajectory import Step

ITERATIONS = 10  # whose episodes are learnt from
WORDS = 64  # of a state; the last words of a longer text are left out
BITS = 18
FEATURES = 2**BITS
PENALTY = 20.0  # of half the squared weights; the cross-entropy is summed over steps
UPDATES = 15  # of L-BFGS, which begins at zero

_WORD = re.compile(r"[^\W\d]+")


class TextCritic:
    """Values of states, learnt from the episodes of earlier iterations.

    Every host holds the episodes of all hosts, so all have the same weights.
    """

    def __init__(self, max_steps: int, seen: Sequence[Mapping[str, str]] = (), join: Join = lambda rows: rows) -> None:
        """Fits nothing yet.

        Args:
          max_steps: the length of an episode.
          seen: the `record` of another one, whose values this one continues.
          join: joins the rows of all hosts.
        """
        self._max_steps, self._join = max_steps, join
        # Of each iteration the words of its states, [n, WORDS] u32, and their returns, [n] f32.
        self._seen = [
            (_array(part["words"], np.uint32).reshape(-1, WORDS), _array(part["returns"], np.float32)) for part in seen
        ]

    def values(self, steps: Sequence[Step]) -> np.ndarray:
        """The values of the states before the steps of whole episodes, [N] f32.

        Before anything is learnt it is the mean return of these steps.
        """
        if not self._seen:
            returns = self._join(remaining_returns(steps))
            return np.full(len(steps), returns.mean() if len(returns) else 0.0, np.float32)
        words, returns = (np.concatenate(rows) for rows in zip(*self._seen, strict=True))
        least, largest = returns.min(initial=0.0), returns.max(initial=0.0)
        weights = fit(words, (returns - least) / max(largest - least, 1e-6))
        logit = features(state_words(steps, self._max_steps)) @ weights[:-1] + weights[-1]
        return (least + (largest - least) / (1 + np.exp(-logit))).astype(np.float32)

    def learn(self, steps: Sequence[Step]) -> None:
        """Keeps an iteration's steps, and forgets the oldest iteration; `values` are of the next one."""
        new = self._join(state_words(steps, self._max_steps)), self._join(remaining_returns(steps))
        self._seen = [*self._seen, new][-ITERATIONS:]

    def record(self) -> list[dict[str, str]]:
        """What it holds, as JSON values, for a checkpoint."""
        return [{"words": _text(words), "returns": _text(returns)} for words, returns in self._seen]


def state_words(steps: Sequence[Step], max_steps: int) -> np.ndarray:
    """The hashed words of the states before some steps: [N, WORDS] u32, each once, then zeros."""
    rows = np.zeros((len(steps), WORDS), np.uint32)
    for row, step in zip(rows, steps, strict=True):
        words = _words(step.type, step.turn.task, step.turn.anchor, max_steps - step.step)
        row[: len(words)] = words
    return rows


@lru_cache(maxsize=65536)
def _words(task_type: str, task: str, anchor: str, left: int) -> tuple[int, ...]:
    named = {word: f"task {place}" for place, word in enumerate(reversed(_WORD.findall(task.lower())), start=1)}
    magnitude = left.bit_length()
    words = [f"type {task_type}", f"left {magnitude} {left >> max(magnitude - 2, 0)}"]
    words += [named.get(word, word) for word in _WORD.findall(anchor.lower())]
    return tuple(map(_number, dict.fromkeys(words)))[:WORDS]


@lru_cache(maxsize=65536)
def _number(word: str) -> int:
    return anchor_hash(word)[0] | 1  # 0 is padding


def remaining_returns(steps: Sequence[Step]) -> np.ndarray:
    """The sum of rewards minus penalties from each step to the end of its episode, [N] f32."""
    totals = np.zeros(len(steps), np.float32)
    after: dict[int, float] = {}
    for row, step in sorted(enumerate(steps), key=lambda pair: -pair[1].step):
        after[step.trajectory] = after.get(step.trajectory, 0.0) + step.turn.reward - step.turn.penalty
        totals[row] = after[step.trajectory]
    return totals


def features(words: np.ndarray) -> scipy.sparse.csr_matrix:
    """The features of states: their words, and all pairs of them.

    Args:
      words: [N, WORDS] u32, as from `state_words`.

    Returns:
      [N, FEATURES] f64, rows of length 1.
    """
    width = int((words != 0).sum(1).max(initial=0))
    wide = words[:, :width].astype(np.uint64)
    first, second = np.triu_indices(width)
    there = (wide != 0)[:, second]
    low, high = np.minimum(wide[:, first], wide[:, second])[there], np.maximum(wide[:, first], wide[:, second])[there]
    mixed = (low * np.uint64(0x9E3779B97F4A7C15)) ^ (high * np.uint64(0xC2B2AE3D27D4EB4F))
    columns = ((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(64 - BITS)
    counts = there.sum(1)
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return scipy.sparse.csr_matrix((values, columns.astype(np.int32), starts), (len(words), FEATURES))


def fit(words: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Fits the regression.

    Args:
      words: [N, WORDS] u32, as from `state_words`.
      target: [N] f32, from 0 to 1.

    Returns:
      [FEATURES + 1] f64: w and b.
    """
    states, place, counts = np.unique(words, axis=0, return_inverse=True, return_counts=True)
    mean = np.bincount(place.ravel(), target) / counts
    x = features(states)
    used = np.unique(x.indices)
    x = x[:, used]
    transposed = x.T.tocsr()

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = parameters[:-1], parameters[-1]
        logit = x @ w + b
        error = counts * (1 / (1 + np.exp(-logit)) - mean)
        value = counts @ (np.logaddexp(0, logit) - mean * logit) + PENALTY / 2 * (w @ w)
        return value, np.append(transposed @ error + PENALTY * w, error.sum())

    start = np.zeros(len(used) + 1)
    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": UPDATES})
    weights = np.zeros(FEATURES + 1)
    weights[used], weights[-1] = found.x[:-1], found.x[-1]
    return weights


def _text(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(array.tobytes())).decode()


def _array(text: str, dtype: Any) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)
