"""The moving deviation of returns of each task type, for EMA-GRPO (arXiv 2512.03043).

Of each type the signal keeps the first and second moments of returns, as moving means over
iterations:

    m_j <- decay m_j + (1 - decay) mean of R^j        j = 1, 2; at first the mean itself
    sigma = sqrt(max(m_2 - m_1^2, 1e-6))

An iteration reads the moments that contain it, as the published code does. A type without episodes
in an iteration keeps its moments.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import all_rows
from gigpo_jax.env_bridge.types import anchor_hash
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.step_columns import JoinRows
from gigpo_jax.policy import Policy
from gigpo_jax.rl.column import Column
from gigpo_jax.run.newest import newest_record
from gigpo_jax.trajectory import Step

DECAY = 0.99
LEAST_DEVIATION = 1e-3
RECORD = "task_moments"  # name in a checkpoint's record

# Hash of a task type, in hexadecimal -> first and second moment of its returns.
Moments = dict[str, tuple[float, float]]


class TaskDeviations(Signal):
    """Moments of the returns of each task type, equal on all hosts, which join their returns."""

    columns = MappingProxyType(
        {
            "task_deviation": Column(
                "float32",
                None,
                "moving deviation of the returns of the step's task type, in units of the reward",
            ),
        }
    )

    def __init__(
        self, decay: float, moments: Moments | None = None, join: JoinRows = lambda rows: rows
    ) -> None:
        """Starts from given moments, or without any.

        Args:
          decay: Weight of the earlier moments, from 0 to 1.
          moments: Moments of an earlier iteration; None: none.
          join: Function that joins the rows of all hosts.
        """
        self._decay = decay
        self._moments = moments or {}
        self._join = join

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Starts without moments of any task type."""
        del config, policy, mesh
        return cls(DECAY, join=all_rows)

    @classmethod
    def load(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, checkpoints: Path
    ) -> Self:
        """Reads the moments of the newest checkpoint's record."""
        signal = cls.start(config, policy, mesh)
        signal.restore({"record": newest_record(checkpoints)})
        return signal

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The deviations of the steps' task types, [N] f32, with the returns of these steps.

        The signal's own moments do not change; `learn_steps` changes them.
        """
        moments = self._updated(scored.steps)
        deviations = [_deviation(moments[_type_key(step)]) for step in scored.steps]
        return {"task_deviation": np.array(deviations, np.float32)}

    def learn_steps(self, scored: ScoredSteps) -> dict[str, float]:
        """Keeps the moments that contain these steps."""
        self._moments = self._updated(scored.steps)
        return {}

    def checkpoint_record(self) -> dict[str, Any]:
        """The moments as JSON values."""
        # Floats in JSON are exact, so a resumed run continues with equal bits.
        return {RECORD: {key: list(moments) for key, moments in self._moments.items()}}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues from the moments in a checkpoint's record."""
        record = checkpoint["record"].get(RECORD, {})
        self._moments = {key: (first, second) for key, (first, second) in record.items()}

    def _updated(self, steps: Sequence[Step]) -> Moments:
        """The moments with these steps of all hosts."""
        types, returns = _episode_rows(steps)
        # Of all hosts, in one order on each: float64 sums have the same bits there.
        types = self._join(types)
        returns = self._join(returns).astype(np.float64)
        keys = np.array([_hash_key(lanes) for lanes in types])
        moments = dict(self._moments)
        for key in sorted({*keys.tolist()}):
            scores = returns[keys == key]
            newest = (float(scores.mean()), float((scores**2).mean()))
            if key in moments:
                first, second = moments[key]
                newest = (self._mix(first, newest[0]), self._mix(second, newest[1]))
            moments[key] = newest
        return moments

    def _mix(self, earlier: float, newest: float) -> float:
        return self._decay * earlier + (1.0 - self._decay) * newest


def _episode_rows(steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
    """Task types and returns of the steps' episodes: [k, 2] u32 hashes and [k] f32.

    A return is the sum of rewards minus penalties. Episodes stand in the order of their first
    steps.
    """
    types: dict[int, tuple[int, int]] = {}
    returns: dict[int, float] = {}
    for step in steps:
        types[step.trajectory] = _type_lanes(step)
        gain = step.turn.reward - step.turn.penalty
        returns[step.trajectory] = returns.get(step.trajectory, 0.0) + gain
    lanes = np.array(list(types.values()), np.uint32).reshape(-1, 2)
    return lanes, np.array(list(returns.values()), np.float32)


def _type_lanes(step: Step) -> tuple[int, int]:
    # Types of two environments of a mix are two types, whatever their names.
    task = step.episode.task
    return anchor_hash(f"{task.environment}/{task.type}")


def _type_key(step: Step) -> str:
    return _hash_key(_type_lanes(step))


def _hash_key(lanes: Sequence[int] | np.ndarray) -> str:
    return f"{int(lanes[0]):08x}{int(lanes[1]):08x}"


def _deviation(moments: tuple[float, float]) -> float:
    first, second = moments
    return math.sqrt(max(second - first * first, LEAST_DEVIATION**2))
