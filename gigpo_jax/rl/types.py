"""What the learner hands to `rl`: minibatches of packed rows, and the columns that advantages are computed from.

Shapes: M microbatches, B rows, T tokens in a row, C response tokens in a row, N environment steps.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax


class ValueTargets(NamedTuple):
    """What a critic learns at response tokens; f32 arrays of one shape, such as [M, B, C].

    Attributes:
      value: its estimate of the return before the token, made before the updates.
      target: what the estimate should be.
      weight: of the token in its loss; 0 where it learns nothing.
    """

    value: Any
    target: Any
    weight: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepBatch:
    """One minibatch: M microbatches of B packed rows; of the M stored, the first `microbatches` are computed.

    Attributes:
      tokens: [M, B, T] i32, model input; 0 in padding.
      positions: [M, B, T] i32, from 0 in each segment; [M, B, 3, T] with images.
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
      action_mask: [M, B, C] bool, tokens of the response's action span, or None.
      clip_scale: [M, B, C] f32, factor of the clips of a ratio other than hoelder_tokens, or None.
      values: `ValueTargets` of [M, B, C] each, what a critic learns, or None.
      teacher: [M, B, C] f32, nats; log-probabilities of a copy of the policy that knows what came of the action, or
        None.
      images: `models.vision.Images` of each microbatch, [M, ...], or None.
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
    action_mask: Any = None
    clip_scale: Any = None
    values: Any = None
    teacher: Any = None
    images: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepColumns:
    """What advantages are computed from: one row an environment step, in any order.

    The columns from `action` on are None unless the algorithm needs them.

    Attributes:
      reward: [N] f32, environment reward of the step.
      penalty: [N] f32, >= 0, for an invalid or overlong response, in units of the reward.
      trajectory: [N] i32, the trajectory of the step; distinct within a group.
      step: [N] i32, its index in that trajectory, from 0.
      group: [N] i32, the task group of that trajectory.
      anchor: [N, 2] u32, hash of the anchor state; equal hashes in different groups are different states.
      mask: [N] bool, False for padding: such a row takes part in nothing.
      action: [N, 2] u32, hash of the action.
      next_anchor: [N, 2] u32, the anchor of the trajectory's next step; zeros at its last step.
      entropy: [N] f32, nats; mean over the response's tokens under the policy before the updates. 0 without tokens.
      logprob: [N] f32, nats; likewise the mean log-probability.
      value: [N] f32, the critic's estimate of the return at the last prompt token, before the response.
      step_reward: [N] f32, what a rule says of the response, in the rule's units.
      tag: [N] i32, number of the response's first tag, 0 for none.
      answer_logprob: [N] f32, nats; mean over the tokens of the known answer, behind the step's prompt.
      tokens: [N] i32, response tokens.
      token_value: [N, R] f32, the critic's estimate of the return before each response token; 0 after the last.
    """

    reward: Any
    penalty: Any
    trajectory: Any
    step: Any
    group: Any
    anchor: Any
    mask: Any
    action: Any = None
    next_anchor: Any = None
    entropy: Any = None
    logprob: Any = None
    value: Any = None
    step_reward: Any = None
    tag: Any = None
    answer_logprob: Any = None
    tokens: Any = None
    token_value: Any = None


OPTIONAL = tuple(field.name for field in fields(StepColumns) if field.default is None)
