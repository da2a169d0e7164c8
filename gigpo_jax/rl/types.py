"""What the learner hands to `rl`: minibatches of packed rows, and the columns that advantages are computed from.

Shapes: M microbatches, B rows, T tokens in a row, C response tokens in a row, N environment steps.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepBatch:
    """One minibatch: M microbatches of B packed rows; of the M stored, the first `microbatches` are computed.

    Attributes:
      tokens: [M, B, T] i32, model input; 0 in padding.
      positions: [M, B, T] i32, from 0 in each segment.
      segment_ids: [M, B, T] i32, from 1 in each row; 0 is padding.
      response_index: [M, B, C] i32, the place in the row whose hidden state predicts the response token; 0 in padding.
      targets: [M, B, C] i32, the response tokens.
      behaviour: [M, B, C] f32, nats; log-probabilities of the policy that sampled the response.
      advantage: [M, B, C] f32.
      weight: [M, B, C] f32, 0 in padding.
      microbatches: [] i32, how many of the M hold rows.
      reference: [M, B, C] f32, nats; log-probabilities of the reference policy, or None.
      proximal: [M, B, C] f32, nats; the behaviour policy's, recomputed by the learner, or None. Given, the ratio is
        against these.
    """

    tokens: Any
    positions: Any
    segment_ids: Any
    response_index: Any
    targets: Any
    behaviour: Any
    advantage: Any
    weight: Any
    microbatches: Any
    reference: Any = None
    proximal: Any = None


class StepColumns(NamedTuple):
    """The positional arguments of `rl.advantages.gigpo_advantages`; one row a step, padded to a bucketed N."""

    reward: np.ndarray  # [N] f32, the environment's units
    penalty: np.ndarray  # [N] f32, >= 0
    trajectory: np.ndarray  # [N] i32
    step: np.ndarray  # [N] i32
    group: np.ndarray  # [N] i32
    anchor: np.ndarray  # [N, 2] u32
    mask: np.ndarray  # [N] bool, False in padding
