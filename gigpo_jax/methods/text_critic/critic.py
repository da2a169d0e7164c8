"""A critic that reads text, on the host: logistic regression of returns on the words of states.

Ours, not published. A state is the set of the words of its anchor text, with its task type and the
number of steps left. A word that the task names is replaced by its place in the task, so that
weights learnt from one task's object hold for others. Features f are the words and all pairs of
them, hashed. With y the sum of rewards minus penalties over the remaining steps, scaled by the
lowest and highest returns in memory,

    V(s) = lowest + (highest - lowest) sigmoid(b + sum of w_f over the features of s)

minimises the cross-entropy to y plus an L2 penalty over the episodes of the last iterations. The
values of an iteration are computed before its returns are learnt. No tokens are generated, and no
gradient reaches the policy.
"""

import base64
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import scipy.optimize
import scipy.sparse
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import all_rows
from gigpo_jax.env_bridge.types import anchor_hash
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.step_columns import JoinRows
from gigpo_jax.policy import Policy
from gigpo_jax.run.newest import newest_record
from gigpo_jax.trajectory import Step

ITERATIONS = 10  # newest iterations whose episodes are in memory
WORDS = 64  # words of a state; later words of a longer text are left out
BITS = 18
FEATURES = 2**BITS
PENALTY = 20.0  # weight of half the squared weights; the cross-entropy is summed over steps
UPDATES = 15  # iterations of L-BFGS, which begins at zero
RECORD = "text_critic"  # name in a checkpoint's record

_WORD = re.compile(r"[^\W\d]+")


class TextCritic(Signal):
    """Values of states, learnt from the episodes that all hosts played in earlier iterations.

    Every host holds these episodes, so all hosts have the same weights.
    """

    columns = ("value",)
    reads_anchors = True

    def __init__(
        self,
        max_steps: int,
        memory: Sequence[Mapping[str, str]] = (),
        join: JoinRows = lambda rows: rows,
    ) -> None:
        """Starts from the memory of another text critic, or from an empty one.

        Args:
          max_steps: length limit of episodes.
          memory: result of `record` of another text critic, whose values this one continues.
          join: function that joins the rows of all hosts.
        """
        self._max_steps = max_steps
        self._join = join
        # Of each iteration the words of its states, [n, WORDS] u32, and their returns, [n] f32.
        self._memory: list[tuple[np.ndarray, np.ndarray]] = []
        self._read_memory(memory)

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Needs a run with episodes that it learns from."""
        del config, policy, steps
        return False

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Starts with an empty memory."""
        del policy, mesh
        return cls(config.env.max_steps, join=all_rows)

    @classmethod
    def load(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, checkpoints: Path
    ) -> Self:
        """Remembers the episodes of the newest checkpoint's record."""
        critic = cls.start(config, policy, mesh)
        critic.restore({"record": newest_record(checkpoints)})
        return critic

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The values of the states before the steps."""
        return {"value": self.values(scored.steps)}

    def checkpoint_record(self) -> dict[str, Any]:
        """The memory as JSON values."""
        return {RECORD: self.record()}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues from the memory in a checkpoint's record."""
        self._read_memory(checkpoint["record"].get(RECORD, ()))

    def values(self, steps: Sequence[Step]) -> np.ndarray:
        """The values of the states before the steps of whole episodes, [N] f32.

        With an empty memory every value is the mean return of these steps.
        """
        if not self._memory:
            returns = self._join(remaining_returns(steps))
            mean = returns.mean() if len(returns) else 0.0
            return np.full(len(steps), mean, np.float32)
        words = np.concatenate([words for words, _ in self._memory])
        returns = np.concatenate([returns for _, returns in self._memory])
        # 0 is always in the range: returns that are all equal would have none.
        lowest = returns.min(initial=0.0)
        highest = returns.max(initial=0.0)
        # Fitted anew each time: so a resumed run needs the memory alone, no optimizer state.
        weights = fit(words, (returns - lowest) / max(highest - lowest, 1e-6))
        logit = features(state_words(steps, self._max_steps)) @ weights[:-1] + weights[-1]
        return (lowest + (highest - lowest) / (1 + np.exp(-logit))).astype(np.float32)

    def learn_steps(self, scored: ScoredSteps) -> dict[str, float]:
        """Adds an iteration's steps to the memory, which forgets the oldest iteration."""
        words = self._join(state_words(scored.steps, self._max_steps))
        returns = self._join(remaining_returns(scored.steps))
        self._memory = [*self._memory, (words, returns)][-ITERATIONS:]
        return {}

    def record(self) -> list[dict[str, str]]:
        """The memory as JSON values, one entry an iteration."""
        return [
            {"words": _encode_array(words), "returns": _encode_array(returns)}
            for words, returns in self._memory
        ]

    def _read_memory(self, memory: Sequence[Mapping[str, str]]) -> None:
        self._memory = []
        for entry in memory:
            words = _decode_array(entry["words"], np.uint32).reshape(-1, WORDS)
            self._memory.append((words, _decode_array(entry["returns"], np.float32)))


def state_words(steps: Sequence[Step], max_steps: int) -> np.ndarray:
    """The hashed words of the states before some steps: [N, WORDS] u32, each once, then zeros."""
    rows = np.zeros((len(steps), WORDS), np.uint32)
    for row, step in zip(rows, steps, strict=True):
        words = _hash_words(
            step.episode.task.type, step.turn.task, step.turn.anchor, max_steps - step.step
        )
        row[: len(words)] = words
    return rows


@lru_cache(maxsize=65536)
def _hash_words(task_type: str, task: str, anchor: str, remaining_steps: int) -> tuple[int, ...]:
    task_words = reversed(_WORD.findall(task.lower()))
    names = {word: f"task {place}" for place, word in enumerate(task_words, start=1)}
    # The two leading bits: near the end each step counts, far from it the order of magnitude does.
    magnitude = remaining_steps.bit_length()
    leading_bits = remaining_steps >> max(magnitude - 2, 0)
    words = [f"type {task_type}", f"left {magnitude} {leading_bits}"]
    words += [names.get(word, word) for word in _WORD.findall(anchor.lower())]
    return tuple(map(_hash_word, dict.fromkeys(words)))[:WORDS]


@lru_cache(maxsize=65536)
def _hash_word(word: str) -> int:
    return anchor_hash(word)[0] | 1  # 0 is padding


def remaining_returns(steps: Sequence[Step]) -> np.ndarray:
    """The sum of rewards minus penalties from each step to the end of its episode, [N] f32."""
    returns = np.zeros(len(steps), np.float32)
    totals: dict[int, float] = {}
    for row, step in sorted(enumerate(steps), key=lambda pair: -pair[1].turn_index):
        later = totals.get(step.trajectory, 0.0)
        totals[step.trajectory] = later + step.turn.reward - step.turn.penalty
        returns[row] = totals[step.trajectory]
    return returns


def features(words: np.ndarray) -> scipy.sparse.csr_matrix:
    """The features of states: words, and all pairs of words.

    Args:
      words: hashed words [N, WORDS] u32, as from `state_words`.

    Returns:
      [N, FEATURES] f64, rows of length 1.
    """
    width = int((words != 0).sum(1).max(initial=0))
    padded = words[:, :width].astype(np.uint64)
    # With the diagonal: a word paired with itself stands for the word alone.
    first, second = np.triu_indices(width)
    # Words come first in a row, then zeros: a pair exists if the second one does.
    present = (padded != 0)[:, second]
    # A pair has no order.
    low = np.minimum(padded[:, first], padded[:, second])[present]
    high = np.maximum(padded[:, first], padded[:, second])[present]
    mixed = (low * np.uint64(0x9E3779B97F4A7C15)) ^ (high * np.uint64(0xC2B2AE3D27D4EB4F))
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    columns = (mixed >> np.uint64(64 - BITS)).astype(np.int32)
    counts = present.sum(1)
    # Rows of length 1: else a state with more words would have larger logits.
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return scipy.sparse.csr_matrix((values, columns, starts), (len(words), FEATURES))


def fit(words: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Fits the regression.

    Args:
      words: hashed words [N, WORDS] u32, as from `state_words`.
      target: returns [N] f32, scaled to the range from 0 to 1.

    Returns:
      [FEATURES + 1] f64: w and b.
    """
    # Equal states share one row with their mean: the loss is the same, the matrix much smaller.
    states, place, counts = np.unique(words, axis=0, return_inverse=True, return_counts=True)
    mean = np.bincount(place.ravel(), target) / counts
    matrix = features(states)
    # Most of the columns are empty; the optimizer sees the others alone.
    used_columns = np.unique(matrix.indices)
    matrix = matrix[:, used_columns]
    transposed = matrix.T.tocsr()

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weights = parameters[:-1]
        bias = parameters[-1]
        logit = matrix @ weights + bias
        error = counts * (1 / (1 + np.exp(-logit)) - mean)
        # logaddexp(0, x) is log(1 + e^x) without an overflow.
        value = counts @ (np.logaddexp(0, logit) - mean * logit)
        # The bias has no penalty: without any feature it can be the mean return.
        value += PENALTY / 2 * (weights @ weights)
        return value, np.append(transposed @ error + PENALTY * weights, error.sum())

    solution = scipy.optimize.minimize(
        loss,
        np.zeros(len(used_columns) + 1),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": UPDATES},
    )
    weights = np.zeros(FEATURES + 1)
    weights[used_columns] = solution.x[:-1]
    weights[-1] = solution.x[-1]
    return weights


def _encode_array(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(array.tobytes())).decode()


def _decode_array(text: str, dtype: Any) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)
